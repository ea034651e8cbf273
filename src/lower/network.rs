//! Networks of comparators that all order the lesser element first, so that directions are known.
//!
//! A thread sorts its own elements by Batcher's merges of odds and evens. Ordered halves of more threads are merged the bitonic way:
//! each element is compared with its mirror image, then at distances of a quarter, an eighth, …: a thread has consecutive elements,
//! so that what is near is compared in registers, between lanes by `shfl`, between warps through scratch.
use super::cx::LowerCx;
use super::emit::S;
use super::memory::{self, Target};
use super::value::scalar_class;
use crate::dtype::DType;
use crate::error::Result;
use crate::ptx::modifier::*;
use crate::ptx::operand::Src;

/// An element: a word for each part, the most significant first.
pub type Element = Vec<S>;

/// Threads that sort a run together.
pub struct Network {
    /// Of the parts, u32 or u64.
    pub dtypes: Vec<DType>,
    /// How many threads, and elements of each: powers of two.
    pub threads: u64,
    pub each: u64,
    /// The thread among them.
    pub thread: S,
    /// Where warps exchange elements in scratch.
    pub exchange: i32,
}

impl Network {
    /// What is behind all others.
    pub fn greatest(&self) -> Element {
        self.dtypes
            .iter()
            .map(|d| Src::Imm(u64::MAX >> (64 - d.bits())))
            .collect()
    }

    /// Orders elements that are anywhere: those of a thread are consecutive then.
    pub fn sort(&self, cx: &mut LowerCx, elements: &mut [Element]) -> Result<()> {
        self.sort_own(cx, elements);
        self.merge(cx, elements, self.each)
    }

    /// Orders what is in order in lists that are so long, at least a thread's elements.
    pub fn merge(&self, cx: &mut LowerCx, elements: &mut [Element], list: u64) -> Result<()> {
        let mut size = 2 * list;
        while size <= self.threads * self.each {
            self.compare(cx, elements, size - 1)?;
            self.halve(cx, elements, size / 4)?;
            size *= 2;
        }
        Ok(())
    }

    /// Orders the elements of each thread, a power of two.
    pub fn sort_own(&self, cx: &mut LowerCx, elements: &mut [Element]) {
        let n = elements.len();
        let mut merged = 1;
        while merged < n {
            let mut distance = merged;
            while distance > 0 {
                for start in (distance % merged..n - distance).step_by(2 * distance) {
                    for i in start..(start + distance).min(n - distance) {
                        if i / (2 * merged) == (i + distance) / (2 * merged) {
                            self.order(cx, elements, i, i + distance);
                        }
                    }
                }
                distance /= 2;
            }
            merged *= 2;
        }
    }

    /// Of two ordered lists of a thread, each a power of two long, the first half, in order, is left in `elements`.
    pub fn keep_first(&self, cx: &mut LowerCx, elements: &mut [Element], others: &[Element]) {
        let n = elements.len();
        for (x, other) in elements.iter_mut().zip(others.iter().rev()) {
            *x = self.lesser(cx, x, other);
        }
        let mut distance = n / 2;
        while distance > 0 {
            for i in (0..n).filter(|i| i & distance == 0) {
                self.order(cx, elements, i, i + distance);
            }
            distance /= 2;
        }
    }

    /// What the lane that differs in these bits has.
    pub fn of_lane(&self, cx: &mut LowerCx, x: &Element, bits: u32) -> Element {
        let parts = self.dtypes.iter().zip(x);
        parts
            .map(|(d, &x)| cx.b.shfl_xor_any(scalar_class(*d), x, bits))
            .collect()
    }

    /// Compares at distances of `distance`, half of it, …, 1.
    pub fn halve(&self, cx: &mut LowerCx, elements: &mut [Element], mut distance: u64) -> Result<()> {
        while distance > 0 {
            self.compare(cx, elements, distance)?;
            distance /= 2;
        }
        Ok(())
    }

    /// Whether `a` comes before `b`.
    pub fn before(&self, cx: &mut LowerCx, a: &Element, b: &Element) -> S {
        let mut out = Src::Imm(0);
        for (part, &dtype) in self.dtypes.iter().enumerate().rev() {
            let ty = match dtype {
                DType::U64 => CompareType::U64,
                _ => CompareType::U32,
            };
            let less = cx.b.setp(Compare::Lt, ty, a[part], b[part]);
            let equal = match out {
                Src::Imm(0) => Src::Imm(0),
                _ => cx.b.setp(Compare::Eq, ty, a[part], b[part]),
            };
            let later = cx.b.both(equal, out);
            out = cx.b.either(less, later);
        }
        out
    }

    /// `which ? a : b`
    pub fn pick(&self, cx: &mut LowerCx, which: S, a: &Element, b: &Element) -> Element {
        let parts = self.dtypes.iter().zip(a.iter().zip(b));
        parts
            .map(|(d, (&a, &b))| cx.b.pick(scalar_class(*d), which, a, b))
            .collect()
    }

    fn lesser(&self, cx: &mut LowerCx, a: &Element, b: &Element) -> Element {
        if self.dtypes == [DType::U32] {
            return vec![cx.b.min(IntType::U32, a[0], b[0])];
        }
        let ordered = self.before(cx, a, b);
        self.pick(cx, ordered, a, b)
    }

    /// Swaps two elements of a thread if the second is the lesser.
    fn order(&self, cx: &mut LowerCx, elements: &mut [Element], i: usize, j: usize) {
        let (a, b) = (elements[i].clone(), elements[j].clone());
        if self.dtypes == [DType::U32] {
            elements[i] = vec![cx.b.min(IntType::U32, a[0], b[0])];
            elements[j] = vec![cx.b.max(IntType::U32, a[0], b[0])];
            return;
        }
        let ordered = self.before(cx, &a, &b);
        elements[i] = self.pick(cx, ordered, &a, &b);
        elements[j] = self.pick(cx, ordered, &b, &a);
    }

    /// Compares each element with the one whose number differs in the bits of `mask`.
    fn compare(&self, cx: &mut LowerCx, elements: &mut [Element], mask: u64) -> Result<()> {
        let (within, across) = ((mask & (self.each - 1)) as usize, (mask / self.each) as u32);
        if across == 0 {
            for i in (0..elements.len()).filter(|i| *i < i ^ within) {
                self.order(cx, elements, i, i ^ within);
            }
            return Ok(());
        }
        let side = cx.b.and32(self.thread, 1 << across.ilog2());
        let is_low = cx.b.setp(Compare::Eq, CompareType::U32, side, Src::u32(0));
        if across >= 32 {
            let others = self.of_warps(cx, elements, within, across)?;
            for (x, other) in elements.iter_mut().zip(&others) {
                *x = self.side_of(cx, is_low, x, other);
            }
            return Ok(());
        }
        // An element and its image within the thread at a time: few values live at once.
        for i in (0..elements.len()).filter(|i| *i <= i ^ within) {
            let j = i ^ within;
            let for_i = self.of_lane(cx, &elements[j], across);
            let for_j = self.of_lane(cx, &elements[i], across);
            elements[i] = self.side_of(cx, is_low, &elements[i], &for_i);
            if i != j {
                elements[j] = self.side_of(cx, is_low, &elements[j], &for_j);
            }
        }
        Ok(())
    }

    /// The lesser where the thread is on the low side, else the other one.
    fn side_of(&self, cx: &mut LowerCx, is_low: S, x: &Element, other: &Element) -> Element {
        let ordered = self.before(cx, x, other);
        let differs = cx.b.logic_pred(Logic::Xor, ordered, is_low);
        self.pick(cx, differs, other, x)
    }

    /// What threads of other warps have to compare with.
    fn of_warps(&self, cx: &mut LowerCx, elements: &[Element], within: usize, across: u32) -> Result<Vec<Element>> {
        let (base, _) = cx.scratch();
        let target = Target::shared(base.into());
        let group = cx.layout_group().threads();
        let thread: S = cx.thread_in_group().into();
        let partner = cx.b.xor(LogicType::B32, thread, Src::u32(across));
        let mut offsets = vec![];
        let mut at = self.exchange;
        for d in &self.dtypes {
            offsets.push(at);
            at += (u64::from(d.bits() / 8 * group) * self.each) as i32;
        }
        cx.sync_group();
        for (part, &dtype) in self.dtypes.iter().enumerate() {
            let bytes = dtype.bits() / 8;
            let own = cx.b.mad(IntType::U32, thread, Src::u32(bytes), base);
            for (e, x) in elements.iter().enumerate() {
                let address = cx.b.addr(own, offsets[part] + (e as u32 * group * bytes) as i32);
                memory::store_element(cx, target, address, dtype, x[part])?;
            }
        }
        cx.sync_group();
        let mut out = vec![vec![]; elements.len()];
        for (part, &dtype) in self.dtypes.iter().enumerate() {
            let bytes = dtype.bits() / 8;
            let theirs = cx.b.mad(IntType::U32, partner, Src::u32(bytes), base);
            for (e, x) in out.iter_mut().enumerate() {
                let from = (e ^ within) as u32;
                let address = cx.b.addr(theirs, offsets[part] + (from * group * bytes) as i32);
                x.push(memory::load_element(cx, target, address, dtype)?);
            }
        }
        Ok(out)
    }
}
