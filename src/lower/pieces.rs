//! Words of array elements out of pieces of other words.
use super::cx::LowerCx;
use super::emit::S;
use super::value::{ArrayRegs, Packing};
use crate::dtype::DType;
use crate::layout::register_layout::RegisterLayout;
use crate::ptx::operand::Src;

/// Words of an array, or single elements where slots are taken out of order.
pub struct Pieces {
    array: ArrayRegs,
    elements: Option<Vec<S>>,
}

impl Pieces {
    pub fn new(array: ArrayRegs) -> Pieces {
        Pieces { array, elements: None }
    }

    /// Every slot's element.
    pub fn elements(&mut self, cx: &mut LowerCx) -> &[S] {
        let array = &self.array;
        self.elements.get_or_insert_with(|| cx.elements(array))
    }

    /// The 32-bit (64-bit types: 64-bit) word that holds these slots in order.
    pub fn word(&mut self, cx: &mut LowerCx, slots: &[u32]) -> S {
        let per = match Packing::of(self.array.dtype) {
            Packing::Words(n) => n,
            Packing::Wide | Packing::Predicates => 1,
        };
        let first = slots[0];
        let whole = first % per == 0 && slots.iter().enumerate().all(|(i, s)| *s == first + i as u32);
        if whole {
            return self.array.regs[(first / per) as usize];
        }
        if per > 1 && slots.len() > 1 {
            let at = |s: &u32| Some((self.array.regs[(s / per) as usize], (s % per) as usize));
            let parts: Vec<_> = slots.iter().map(at).collect();
            return assemble_word(cx, self.array.dtype, &parts);
        }
        let elements = self.elements(cx);
        let picked: Vec<S> = slots.iter().map(|s| elements[*s as usize]).collect();
        let layout = RegisterLayout::replicated(&[picked.len() as u64], self.array.layout.group());
        cx.from_elements(self.array.dtype, layout, &picked).regs[0]
    }
}

/// One packed word out of (word, position) for each of its slots; slots that nothing fills are padding.
pub fn assemble_word(cx: &mut LowerCx, dtype: DType, parts: &[Option<(S, usize)>]) -> S {
    let Some(first) = parts.iter().flatten().next() else {
        return Src::Imm(0);
    };
    let together = parts
        .iter()
        .enumerate()
        .all(|(i, p)| p.is_none_or(|(word, at)| word == first.0 && at == i));
    if together {
        return first.0;
    }
    let bits = dtype.bits();
    if let Some(bytes) = bytes_of(bits, parts) {
        return assemble_bytes(cx, &bytes);
    }
    let mut word: S = Src::u32(0);
    for (i, part) in parts.iter().enumerate() {
        let Some((from, at)) = part else { continue };
        let x = cx.b.field(*from, *at as u32 * bits, bits, false);
        word = if i == 0 {
            x
        } else {
            cx.b.insert_field(x, word, i as u32 * bits, bits)
        };
    }
    word
}

/// The same of bytes; none: elements of a byte do not come from one byte.
fn bytes_of(bits: u32, parts: &[Option<(S, usize)>]) -> Option<Vec<Option<(S, u32)>>> {
    if bits >= 8 {
        let per = bits / 8;
        let of = |(word, at): (S, usize), i| (word, at as u32 * per + i);
        return Some(
            parts
                .iter()
                .flat_map(|p| (0..per).map(move |i| p.map(|p| of(p, i))))
                .collect(),
        );
    }
    let per = (8 / bits) as usize;
    let together = |group: &[Option<(S, usize)>]| {
        let Some((i, (word, at))) = group.iter().enumerate().find_map(|(i, p)| p.map(|p| (i, p))) else {
            return Some(None);
        };
        let start = at.checked_sub(i).filter(|start| start % per == 0)?;
        let is_next = |(i, p): (usize, &Option<(S, usize)>)| p.is_none_or(|p| p == (word, start + i));
        group
            .iter()
            .enumerate()
            .all(is_next)
            .then_some(Some((word, (start / per) as u32)))
    };
    parts.chunks(per).map(together).collect()
}

/// A word out of bytes of words, two words at a time.
fn assemble_bytes(cx: &mut LowerCx, bytes: &[Option<(S, u32)>]) -> S {
    let mut bytes = bytes.to_vec();
    loop {
        let mut words: Vec<S> = vec![];
        for (word, _) in bytes.iter().flatten() {
            if !words.contains(word) {
                words.push(*word);
            }
        }
        for pair in words.chunks(2) {
            let (a, b) = (pair[0], *pair.last().unwrap_or(&pair[0]));
            // A third word alone waits for the other two.
            if a == b && words.len() > 1 {
                continue;
            }
            let mut selector = 0;
            for (i, byte) in bytes.iter().enumerate() {
                let from = match byte {
                    Some((word, at)) if *word == a => *at,
                    Some((word, at)) if *word == b => 4 + at,
                    Some(_) | None => i as u32,
                };
                selector |= from << (4 * i);
            }
            let joined = cx.b.prmt(a, b, selector);
            if words.len() <= 2 {
                return joined;
            }
            for (i, byte) in bytes.iter_mut().enumerate() {
                if let Some((word, at)) = byte
                    && (*word == a || *word == b)
                {
                    (*word, *at) = (joined, i as u32);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements of the words 100 and 200 by their position; a negative one is padding.
    fn parts(of: &[(u64, i32)]) -> Vec<Option<(S, usize)>> {
        of.iter()
            .map(|&(word, at)| usize::try_from(at).ok().map(|at| (Src::Imm(word), at)))
            .collect()
    }

    fn bytes(bits: u32, of: &[(u64, i32)]) -> Option<Vec<Option<(u64, u32)>>> {
        let bytes = bytes_of(bits, &parts(of))?;
        Some(
            bytes
                .into_iter()
                .map(|b| b.map(|(word, at)| (word.imm().unwrap(), at)))
                .collect(),
        )
    }

    #[test]
    fn elements_of_bytes() {
        let halves = [Some((100, 2)), Some((100, 3)), Some((200, 0)), Some((200, 1))];
        assert_eq!(bytes(16, &[(100, 1), (200, 0)]), Some(halves.to_vec()));
        assert_eq!(
            bytes(8, &[(100, 3), (0, -1), (200, 1)]),
            Some(vec![Some((100, 3)), None, Some((200, 1))])
        );
    }

    #[test]
    fn bytes_of_nibbles() {
        assert_eq!(
            bytes(4, &[(100, 6), (100, 7), (200, 2), (200, 3)]),
            Some(vec![Some((100, 3)), Some((200, 1))])
        );
        assert_eq!(
            bytes(4, &[(100, 4), (0, -1), (0, -1), (200, 3)]),
            Some(vec![Some((100, 2)), Some((200, 1))])
        );
        assert_eq!(
            bytes(4, &[(0, -1), (0, -1), (100, 0), (100, 1)]),
            Some(vec![None, Some((100, 0))])
        );
        // Across the border of two bytes, of two words, in another order.
        assert_eq!(bytes(4, &[(100, 1), (100, 2)]), None);
        assert_eq!(bytes(4, &[(100, 0), (200, 1)]), None);
        assert_eq!(bytes(4, &[(100, 1), (100, 0)]), None);
        assert_eq!(bytes(4, &[(0, -1), (100, 0)]), None);
        assert_eq!(
            bytes(2, &[(100, 4), (100, 5), (100, 6), (100, 7)]),
            Some(vec![Some((100, 1))])
        );
        assert_eq!(bytes(2, &[(100, 2), (100, 3), (100, 4), (100, 5)]), None);
    }
}
