//! Tensor memory: allocations, loads and stores, products against the exact model on logical matrices, copies; and what the checker says.
use super::build::{bytes_of, every_order, lent, options, random_bytes, words_of};
use crate::emulate::arith::tensor_core::{Accumulator, Element, MmaKind, step};
use crate::emulate::{AgentOrder, Options, Program, Undefined, Unwatched, run};
use crate::error::{Error, Loc};
use crate::ptx::launch::EntryParam;
use crate::ptx::parse::parse;
use std::fmt::Write;

/// Where operands begin in shared memory: behind barriers and the address of the allocation.
const DATA: u32 = 1024;
const DATA_BYTES: u32 = 48 * 1024;
/// The same as a shared-window address.
const WINDOW: u32 = 1024 + DATA;

/// A kernel of 128 threads in the making. %r0 is the thread, %r1 shared memory, %r3 the address of 512 columns; %p0 holds in thread 0, %p1 in
/// warp 0, %p2 in thread 32, %p3 in warp 1. An mbarrier of one arrival is at 0, others at 16 and 24.
#[derive(Clone)]
struct Text {
    body: String,
    columns: u32,
    ends: bool,
}

impl Text {
    /// Shared memory is buffer 0, from `DATA` on.
    fn new() -> Text {
        Text::bare()
            .add("@%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+8], 512;")
            .fill()
            .add("ld.shared.b32 %r3, [%r1+8];")
    }

    fn bare() -> Text {
        let text = Text {
            body: String::new(),
            columns: 512,
            ends: true,
        };
        text.add(
            "mov.u32 %r0, %tid.x;
            mov.u32 %r1, smalt_smem;
            ld.param.b64 %d0, [smalt_p0];
            ld.param.b64 %d1, [smalt_p1];
            shr.u32 %r2, %r0, 5;
            setp.eq.u32 %p0, %r0, 0;
            setp.eq.u32 %p1, %r2, 0;
            setp.eq.u32 %p2, %r0, 32;
            setp.eq.u32 %p3, %r2, 1;
            mad.wide.u32 %d2, %r0, 4, %d1;
            @%p0 mbarrier.init.shared::cta.b64 [%r1], 1;
            @%p0 mbarrier.init.shared::cta.b64 [%r1+16], 1;
            @%p0 mbarrier.init.shared::cta.b64 [%r1+24], 32;
            @%p0 fence.mbarrier_init.release.cluster;",
        )
    }

    fn fill(self) -> Text {
        let mut text = self.add("mad.wide.u32 %d3, %r0, 16, %d0;\nmad.lo.u32 %r4, %r0, 16, %r1;");
        for at in (0..DATA_BYTES).step_by(2048) {
            text = text.add(&format!(
                "ld.global.v4.b32 {{%r8, %r9, %r10, %r11}}, [%d3+{at}];
                st.shared.v4.b32 [%r4+{}], {{%r8, %r9, %r10, %r11}};",
                DATA + at
            ));
        }
        text.add("fence.proxy.async.shared::cta;\nbar.sync 0, 128;")
    }

    fn add(mut self, lines: &str) -> Text {
        for line in lines.lines() {
            let _ = writeln!(self.body, "\t{}", line.trim());
        }
        self
    }

    /// Waits for an mbarrier.
    fn wait(self, at: u32, parity: u32) -> Text {
        let text = format!(
            "{{\n.reg .pred P;\nW:\nmbarrier.try_wait.parity.shared::cta.b64 P, [%r1+{at}], {parity};\n@P bra.uni D;\nbra.uni W;\nD:\n}}"
        );
        // Labels stand at the margin.
        text.lines().fold(self, |mut text, line| {
            let _ = match line {
                "W:" | "D:" => writeln!(text.body, "{line}"),
                _ => writeln!(text.body, "\t{line}"),
            };
            text
        })
    }

    fn commit(self) -> Text {
        self.add("@%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];")
    }

    /// Columns from one on, a lane a thread, to buffer 1, 512 bytes a column.
    fn out(self, first: u32, columns: u32) -> Text {
        let mut text = self;
        let step = columns.min(8);
        for at in (0..columns).step_by(step as usize) {
            text = text.load(first + at, step).add("tcgen05.wait::ld.sync.aligned;");
            for i in 0..step {
                text = text.add(&format!("st.global.b32 [%d2+{}], %r{};", 512 * (at + i), 16 + i));
            }
        }
        text
    }

    /// The same, without the wait, to registers from %r16 on.
    fn load(self, first: u32, columns: u32) -> Text {
        let registers: Vec<String> = (0..columns).map(|i| format!("%r{}", 16 + i)).collect();
        let list = registers.join(", ");
        self.add(&format!(
            "tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {{{list}}}, [%r3+{first}];"
        ))
    }

    /// Columns of all lanes get values.
    fn fill_columns(self, first: u32, columns: u32) -> Text {
        let mut text = self.add("mul.lo.u32 %r5, %r0, 65793;");
        for at in 0..columns {
            text = text.add(&format!(
                "add.u32 %r6, %r5, {};\ntcgen05.st.sync.aligned.32x32b.x1.b32 [%r3+{}], {{%r6}};",
                77 * at,
                first + at
            ));
        }
        text
    }

    fn ends_itself(mut self) -> Text {
        self.ends = false;
        self
    }

    fn run(&self, input: &[u8], words: usize, options: &Options) -> Result<Vec<u32>, Error> {
        let mut body = self.body.clone();
        if self.ends {
            let _ = writeln!(
                body,
                "\tbar.sync 0, 128;\n\t@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r3, {};",
                self.columns
            );
        }
        let text = format!(
            ".version 8.6\n.target sm_100a\n.address_size 64\n\n.extern .shared .align 1024 .b8 smalt_smem[];\n\n\
             .visible .entry kernel(\n\t.param .b64 smalt_p0,\n\t.param .b64 smalt_p1\n)\n.maxntid 128, 1, 1\n{{\n\
             \t.reg .pred %p<8>;\n\t.reg .b16 %h<4>;\n\t.reg .b32 %r<160>;\n\t.reg .b64 %d<12>;\nB0:\n{body}\tret;\n}}\n.file 1 \"smalt.op\"\n"
        );
        let mut flat = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        flat.launch.smem_bytes = DATA + DATA_BYTES;
        flat.launch.params = (0..2).map(|buffer| EntryParam::Pointer { buffer }).collect();
        let mut at = 0;
        for inst in flat.blocks.iter_mut().flat_map(|block| &mut block.insts) {
            at += 1;
            inst.loc = Loc(at);
        }
        let program = Program::decode(&flat)?;
        let mut input = input.to_vec();
        input.resize(DATA_BYTES as usize, 0);
        let mut buffers = [input, vec![0; 4 * words]];
        let hosts = lent(&mut buffers);
        // SAFETY: the buffers are ours, exclusively, and outlive the call.
        unsafe { run::<crate::emulate::Checker>(&program, &hosts, options, &Unwatched) }?;
        Ok(words_of(&buffers[1]))
    }

    fn words(&self, input: &[u8], words: usize) -> Vec<u32> {
        let mut orders = every_order();
        orders.truncate(5);
        let mut all = orders.iter().map(|options| {
            self.run(input, words, options)
                .unwrap_or_else(|e| panic!("{e}\n{}", self.body))
        });
        let first = all.next().expect("some order");
        assert!(all.all(|it| it == first), "orders of agents differ");
        first
    }

    /// What is wrong, whatever nothing wrote; in other orders of warps it may be something else.
    fn error(&self, undefined: Undefined) -> Error {
        let input = random_bytes(DATA_BYTES as usize, 1);
        let of = |order| {
            let options = Options {
                undefined: undefined.clone(),
                ..options().with_agents(order)
            };
            match self.run(&input, 128 * 512, &options) {
                Err(error) => error,
                Ok(_) => panic!("nothing is wrong under {order:?}\n{}", self.body),
            }
        };
        (0..4).for_each(|seed| drop(of(AgentOrder::Seeded(seed))));
        let (latest, earliest) = (of(AgentOrder::Latest), of(AgentOrder::Earliest));
        assert_eq!(latest.loc, earliest.loc, "{latest}\n{earliest}");
        latest
    }

    #[track_caller]
    fn says(&self, what: &str) {
        Text::is(&self.error(Undefined::Ignored), what);
    }
    #[track_caller]
    fn says_undefined(&self, what: &str) {
        Text::is(&self.error(Undefined::Denied), what);
    }

    #[track_caller]
    fn is(error: &Error, what: &str) {
        let all = format!("{error}");
        assert!(all.contains(what), "expected `{what}` in\n{all}");
        assert!(error.loc.is_some(), "{all}");
    }

    #[track_caller]
    fn is_right(&self) {
        self.words(&random_bytes(DATA_BYTES as usize, 1), 128 * 512);
    }
}

#[derive(Clone, Copy, Debug)]
struct Layout {
    span: u32,
    is_mn: bool,
    /// Chunks of 32 bytes move.
    wide: bool,
}

const K128: Layout = Layout {
    span: 128,
    is_mn: false,
    wide: false,
};

/// A logical matrix of `rows` × 32 bytes along K, put into shared memory at `at` as its layout says; returns the descriptor. By the layouts'
/// definitions, element by element.
fn place(smem: &mut [u8], at: u32, rows: u32, es: u32, data: &[u8], layout: Layout) -> u64 {
    let Layout { span, is_mn, wide } = layout;
    let depth = 32 / es;
    let deep = if wide { 4 } else { 8 };
    let block = deep * span;
    let (k_step, m_step) = (block, block * (depth / deep).max(1));
    let (leading, stride) = match (is_mn, span) {
        (false, 16) => (128 * (rows / 8), 128),
        (false, _) => (0, 8 * span),
        (true, 16) => (k_step, m_step),
        (true, _) => (m_step, k_step),
    };
    for r in 0..rows {
        for k in 0..depth {
            let (along, byte) = (r * es, k * es);
            let linear = match (is_mn, span) {
                (false, 16) => byte / 16 * leading + r / 8 * stride + r % 8 * 16 + byte % 16,
                (false, _) => r / 8 * stride + r % 8 * span + byte,
                (true, _) => along / span * m_step + k / deep * k_step + k % deep * span + along % span,
            };
            let address = WINDOW + at + linear;
            let address = match wide {
                true => address ^ (address >> 7 & 3) << 5,
                false => address ^ (address >> 7 & (span / 16 - 1)) << 4,
            };
            for i in 0..es {
                smem[(address + i - WINDOW) as usize] = data[(r * 32 + byte + i) as usize];
            }
        }
    }
    let code = match (span, wide) {
        (128, true) => 1u64,
        (128, false) => 2,
        (64, _) => 4,
        (32, _) => 6,
        _ => 0,
    };
    let field = |bytes: u32, at: u32| u64::from(bytes >> 4) << at;
    field(WINDOW + at, 0) | field(leading, 16) | field(stride, 32) | 1 << 46 | code << 61
}

struct Case {
    kind: MmaKind,
    m: u32,
    n: u32,
    a: Layout,
    b: Layout,
    a_in_tensor: bool,
    accumulate: bool,
    lane: u32,
}

impl Case {
    fn new(a: Element, b: Element, d: Accumulator, m: u32, n: u32) -> Case {
        Case {
            kind: MmaKind::blackwell(a, b, d).expect("a kind"),
            m,
            n,
            a: K128,
            b: K128,
            a_in_tensor: false,
            accumulate: true,
            lane: 0,
        }
    }

    fn name(&self) -> &'static str {
        match self.kind.a() {
            Element::F16 | Element::Bf16 => "f16",
            Element::Tf32 => "tf32",
            Element::E4m3 | Element::E5m2 => "f8f6f4",
            _ => "i8",
        }
    }

    fn idesc(&self) -> u32 {
        let code = |e| match e {
            Element::F16 | Element::E4m3 | Element::U8 => 0,
            Element::Tf32 => 2,
            _ => 1,
        };
        let (d, saturates) = match self.kind.accumulator() {
            Accumulator::F16 => (0, 0),
            Accumulator::F32 => (1, 0),
            Accumulator::S32 => (2, 0),
            Accumulator::S32Saturating => (2, 1),
        };
        saturates << 3
            | d << 4
            | code(self.kind.a()) << 7
            | code(self.kind.b()) << 10
            | u32::from(self.a.is_mn) << 15
            | u32::from(self.b.is_mn) << 16
            | self.n / 8 << 17
            | self.m / 16 << 24
    }

    fn lane_of(&self, row: u32) -> usize {
        (if self.m == 128 {
            row
        } else {
            row / 16 * 32 + row % 16 + self.lane
        }) as usize
    }

    /// Columns 256.. hold C, then D; A, where it is in tensor memory, is in columns 0..8.
    fn check(&self, seed: u64) {
        let es = self.kind.a().bits() as u32 / 8;
        let random = |rows: u32, seed| {
            let mut bytes = random_bytes((rows * 32) as usize, seed);
            if matches!(self.kind.a(), Element::F16 | Element::Bf16) {
                // Few infinities, and sums of like exponents.
                bytes
                    .chunks_exact_mut(2)
                    .for_each(|b| b[1] = b[1] & 0x83 | 0x38 + (b[1] >> 4 & 3));
            }
            bytes
        };
        let (a, b) = (random(self.m, seed), random(self.n, seed + 1));
        let mut smem = vec![0u8; DATA_BYTES as usize];
        let b_desc = place(&mut smem, 16 * 1024, self.n, es, &b, self.b);
        let a_desc = place(&mut smem, 0, self.m, es, &a, self.a);
        let mut text = Text::new().fill_columns(256, self.n);
        let idesc = self.idesc();
        let a_operand = match self.a_in_tensor {
            false => {
                text = text.add(&format!("mov.b64 %d4, {a_desc:#x};"));
                "%d4".to_owned()
            }
            true => {
                // Lane by lane from shared memory, where its rows lie K-major without a swizzle.
                for word in 0..8 {
                    let at = DATA + 4 * (word % 4) + word / 4 * (128 * (self.m / 8));
                    text = text.add(&match self.m {
                        128 => format!("mad.lo.u32 %r5, %r0, 16, %r1;\nld.shared.b32 %r6, [%r5+{at}];"),
                        // Both halves of a quarter get the row of their 16 lanes.
                        _ => format!(
                            "and.b32 %r5, %r0, 15;\nmad.lo.u32 %r5, %r2, 16, %r5;\nmad.lo.u32 %r5, %r5, 16, %r1;\nld.shared.b32 %r6, [%r5+{at}];"
                        ),
                    });
                    text = text.add(&format!("tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3+{word}], {{%r6}};"));
                }
                "[%r4]".to_owned()
            }
        };
        let text = text
            .add("tcgen05.wait::st.sync.aligned;\nbar.sync 0, 128;")
            .add(&format!("add.u32 %r4, %r3, {};", self.lane << 16))
            .add(&format!(
                "mov.b64 %d5, {b_desc:#x};\nsetp.eq.u32 %p4, {}, 1;",
                u32::from(self.accumulate)
            ))
            .add(&format!(
                "@%p0 tcgen05.mma.cta_group::1.kind::{} [%r4+256], {a_operand}, %d5, {idesc}, %p4;",
                self.name()
            ))
            .commit()
            .wait(0, 0)
            .add("tcgen05.fence::after_thread_sync;")
            .out(256, self.n);
        let got = text.words(&smem, 128 * 256);
        for row in 0..self.m {
            let lane = self.lane_of(row);
            for column in 0..self.n {
                let c = (lane as u32).wrapping_mul(65793).wrapping_add(77 * column);
                let is_half = self.kind.accumulator() == Accumulator::F16;
                let c = match (self.accumulate, is_half) {
                    (false, _) => 0,
                    (true, false) => c,
                    (true, true) => c & 0xffff,
                };
                let (x, y) = (&a[32 * row as usize..][..32], &b[32 * column as usize..][..32]);
                let expected = step(self.kind, x, y, c, false);
                let got = got[128 * column as usize + lane];
                assert_eq!(
                    got, expected,
                    "row {row}, column {column}, {:?} of m{}n{}",
                    self.kind, self.m, self.n
                );
            }
        }
    }
}

const FLOATS: [(Element, Element, Accumulator); 9] = [
    (Element::F16, Element::F16, Accumulator::F32),
    (Element::F16, Element::F16, Accumulator::F16),
    (Element::Bf16, Element::Bf16, Accumulator::F32),
    (Element::Tf32, Element::Tf32, Accumulator::F32),
    (Element::E4m3, Element::E4m3, Accumulator::F32),
    (Element::E4m3, Element::E5m2, Accumulator::F32),
    (Element::E5m2, Element::E4m3, Accumulator::F16),
    (Element::E5m2, Element::E5m2, Accumulator::F32),
    (Element::E4m3, Element::E4m3, Accumulator::F16),
];
const INTEGERS: [(Element, Element, Accumulator); 3] = [
    (Element::S8, Element::S8, Accumulator::S32),
    (Element::U8, Element::S8, Accumulator::S32),
    (Element::S8, Element::U8, Accumulator::S32Saturating),
];

#[test]
fn products_of_all_types() {
    for (i, (a, b, d)) in FLOATS.into_iter().chain(INTEGERS).enumerate() {
        Case::new(a, b, d, 128, 32).check(10 * i as u64);
        let half = Case::new(a, b, d, 64, 16);
        Case { lane: 16, ..half }.check(10 * i as u64 + 5);
    }
}

#[test]
fn products_of_all_layouts() {
    let mut seed = 1000;
    for (a, b, d) in [FLOATS[0], FLOATS[2], FLOATS[3], FLOATS[5], INTEGERS[0]] {
        let es = a.bits() / 8;
        for span in [16, 32, 64, 128] {
            for is_mn in [false, true] {
                let layout = Layout {
                    span,
                    is_mn,
                    wide: is_mn && es == 4,
                };
                if layout.wide && span != 128 {
                    continue;
                }
                let case = Case::new(a, b, d, 128, 128);
                seed += 2;
                Case {
                    a: layout,
                    b: layout,
                    ..case
                }
                .check(seed);
                // The one and the other.
                let case = Case::new(a, b, d, 64, if is_mn { 128 } else { 8 });
                Case { b: layout, ..case }.check(seed + 1);
            }
        }
    }
}

#[test]
fn products_whose_a_is_in_tensor_memory() {
    let bare = Layout { span: 16, ..K128 };
    for (i, (a, b, d)) in [FLOATS[0], FLOATS[3], FLOATS[5], INTEGERS[1]].into_iter().enumerate() {
        for (m, lane) in [(128, 0), (64, 0), (64, 16)] {
            let case = Case::new(a, b, d, m, 24 - 8 * (i as u32 % 2));
            Case {
                a: bare,
                a_in_tensor: true,
                accumulate: lane == 0,
                lane,
                ..case
            }
            .check(2000 + i as u64);
        }
    }
}

/// Where thread, register of a transfer lie, as the tables of the PTX ISA draw them: row by row, not by the emulator's formula.
fn drawn(shape: &str) -> Vec<Vec<(usize, usize)>> {
    // By column and lane (thread, register) of one repetition.
    let (lanes, columns) = match shape {
        "32x32b" => (32, 1),
        "16x64b" => (16, 2),
        "16x128b" => (16, 4),
        _ => (16, 8),
    };
    let mut out = vec![vec![(0, 0); lanes]; columns];
    for lane in 0..lanes {
        for column in 0..columns {
            out[column][lane] = match shape {
                "32x32b" => (lane, 0),
                // Rows 0..8 in even threads, two columns beside one another in neighbours of two.
                "16x64b" => (4 * (lane % 8) + 2 * column + lane / 8, 0),
                "16x128b" => (4 * (lane % 8) + column, lane / 8),
                // Pairs of columns in a thread, as accumulators of wgmma.
                _ => (4 * (lane % 8) + column / 2, 2 * (lane / 8) + column % 2),
            };
        }
    }
    out
}

#[test]
fn loads_find_what_their_shapes_say() {
    for (shape, once) in [("32x32b", 1), ("16x64b", 1), ("16x128b", 2), ("16x256b", 4)] {
        for times in [1usize, 4] {
            for (lane, packed) in [(0u32, false), (16, false), (0, true)] {
                if shape == "32x32b" && lane != 0 {
                    continue;
                }
                let n = once * times;
                let list: Vec<String> = (0..n).map(|i| format!("%r{}", 16 + i)).collect();
                let columns = drawn(shape).len() * times * if packed { 2 } else { 1 };
                let mut text = Text::new()
                    .fill_columns(64, columns as u32)
                    .add("tcgen05.wait::st.sync.aligned;")
                    .add(&format!("add.u32 %r4, %r3, {};", lane << 16))
                    .add(&format!(
                        "tcgen05.ld.sync.aligned.{shape}.x{times}{}.b32 {{{}}}, [%r4+64];\ntcgen05.wait::ld.sync.aligned;",
                        if packed { ".pack::16b" } else { "" },
                        list.join(", ")
                    ));
                for i in 0..n {
                    text = text.add(&format!("st.global.b32 [%d2+{}], %r{};", 512 * i, 16 + i));
                }
                let got = text.words(&[], 128 * n);
                let value =
                    |lane: usize, column: usize| (lane as u32).wrapping_mul(65793).wrapping_add(77 * column as u32);
                for warp in 0..4 {
                    for (c, rows) in drawn(shape).iter().enumerate() {
                        for (l, (t, r)) in rows.iter().enumerate() {
                            for again in 0..times {
                                let (l, c) = (32 * warp + lane as usize + l, c + again * drawn(shape).len());
                                let expected = match packed {
                                    false => value(l, c),
                                    true => value(l, 2 * c) & 0xffff | value(l, 2 * c + 1) << 16,
                                };
                                let got = got[128 * (r + again * once) + 32 * warp + t];
                                assert_eq!(got, expected, "{shape}.x{times}, lane {l}, column {c}");
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_stored_is_loaded() {
    for (shape, once, most) in [
        ("32x32b", 1, 128),
        ("16x64b", 1, 128),
        ("16x128b", 2, 64),
        ("16x256b", 4, 32),
    ] {
        for times in [1, 2, most / 4] {
            for pack in [false, true] {
                let n = once * times;
                if n > 64 {
                    continue;
                }
                let list = |from| (0..n).map(|i| format!("%r{}", from + i)).collect::<Vec<_>>().join(", ");
                let mut text = Text::new();
                for i in 0..n {
                    text = text.add(&format!("mad.lo.u32 %r{}, %r0, 40503, {};", 16 + i, 7919 * i));
                }
                let (unpack, pack) = if pack { (".unpack::16b", ".pack::16b") } else { ("", "") };
                text = text.add(&format!(
                    "tcgen05.st.sync.aligned.{shape}.x{times}{unpack}.b32 [%r3+32], {{{}}};
                    tcgen05.wait::st.sync.aligned;
                    tcgen05.ld.sync.aligned.{shape}.x{times}{pack}.b32 {{{}}}, [%r3+32];
                    tcgen05.wait::ld.sync.aligned;",
                    list(16),
                    list(88)
                ));
                for i in 0..n {
                    text = text.add(&format!("st.global.b32 [%d2+{}], %r{};", 512 * i, 88 + i));
                }
                let got = text.words(&[], 128 * n);
                for (at, got) in got.into_iter().enumerate() {
                    assert_eq!(
                        got,
                        (at as u32 % 128)
                            .wrapping_mul(40503)
                            .wrapping_add(7919 * (at as u32 / 128))
                    );
                }
            }
        }
    }
}

#[test]
fn copies_go_where_their_shapes_say() {
    // Rows, 16-byte chunks, and the lanes of a row.
    type To = fn(u32) -> Vec<u32>;
    let cases: [(&str, u32, u32, To); 4] = [
        ("128x256b", 128, 2, |i| vec![i]),
        ("128x128b", 128, 1, |i| vec![i]),
        ("64x128b.warpx2::01_23", 64, 1, |i| match i < 32 {
            true => vec![i, i + 32],
            false => vec![i + 32, i + 64],
        }),
        ("32x128b.warpx4", 32, 1, |i| vec![i, i + 32, i + 64, i + 96]),
    ];
    for (shape, rows, chunks, to) in cases {
        for span in [16, 32, 128] {
            let data = random_bytes(128 * 32, 5);
            let mut smem = vec![0; DATA_BYTES as usize];
            let layout = Layout { span, ..K128 };
            let desc = place(&mut smem, 4096, 128, 4, &data, layout);
            let got = Text::new()
                .add(&format!(
                    "mov.b64 %d4, {desc:#x};\n@%p0 tcgen05.cp.cta_group::1.{shape} [%r3+8], %d4;"
                ))
                .commit()
                .wait(0, 0)
                .out(8, 4 * chunks)
                .words(&smem, 128 * 8);
            for row in 0..rows {
                for word in 0..4 * chunks {
                    let at = (32 * row + 4 * word) as usize;
                    let expected = u32::from_le_bytes(data[at..at + 4].try_into().expect("four"));
                    for lane in to(row) {
                        assert_eq!(
                            got[(128 * word + lane) as usize],
                            expected,
                            "{shape}, row {row}, word {word}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn products_of_one_accumulator_follow_one_another() {
    let case = Case::new(Element::F16, Element::F16, Accumulator::F32, 128, 16);
    let mut smem = vec![0; DATA_BYTES as usize];
    let one = bytes_of(&[0x3c00_3c00; 128 * 8]);
    let a = place(&mut smem, 0, 128, 2, &one, K128);
    let b = place(&mut smem, 16 * 1024, 16, 2, &one, K128);
    let idesc = case.idesc();
    let mut text = Text::new().add(&format!(
        "mov.b64 %d4, {a:#x};\nmov.b64 %d5, {b:#x};\nsetp.eq.u32 %p4, 0, 1;\nsetp.eq.u32 %p5, 1, 1;"
    ));
    for i in 0..5 {
        let p = if i == 0 { 4 } else { 5 };
        text = text.add(&format!(
            "@%p0 tcgen05.mma.cta_group::1.kind::f16 [%r3], %d4, %d5, {idesc}, %p{p};"
        ));
    }
    let got = text.commit().wait(0, 0).out(0, 16).words(&smem, 128 * 16);
    assert!(got.iter().all(|word| f32::from_bits(*word) == 80.0));
}

/// f16, 128 × 16 columns, of operands at `DATA` and 16 KiB behind.
const IDESC: u32 = 1 << 4 | 16 / 8 << 17 | 128 / 16 << 24;

impl Text {
    /// Descriptors in %d4 and %d5, and %p4 false, %p5 true.
    fn operands() -> Text {
        Text::new().descriptors()
    }

    fn descriptors(self) -> Text {
        let mut smem = vec![0; DATA_BYTES as usize];
        let a = place(&mut smem, 0, 128, 2, &[0; 128 * 32], K128);
        let b = place(&mut smem, 16 * 1024, 16, 2, &[0; 16 * 32], K128);
        self.add(&format!(
            "mov.b64 %d4, {a:#x};\nmov.b64 %d5, {b:#x};\nsetp.eq.u32 %p4, 0, 1;\nsetp.eq.u32 %p5, 1, 1;"
        ))
    }

    /// A thread (of predicate `p`) issues a product into columns from `d` on.
    fn product(self, p: u32, d: u32, accumulates: bool) -> Text {
        let accumulate = if accumulates { 5 } else { 4 };
        self.add(&format!(
            "@%p{p} tcgen05.mma.cta_group::1.kind::f16 [%r3+{d}], %d4, %d5, {IDESC}, %p{accumulate};"
        ))
    }
    fn wide_product(self, d: u32) -> Text {
        let idesc = IDESC + (16 / 8 << 17);
        self.add(&format!(
            "@%p0 tcgen05.mma.cta_group::1.kind::f16 [%r3+{d}], %d4, %d5, {idesc}, %p4;"
        ))
    }
    /// One whose A is in columns 64..72.
    fn product_of_tensor(self) -> Text {
        self.add(&format!(
            "add.u32 %r7, %r3, 64;\n@%p0 tcgen05.mma.cta_group::1.kind::f16 [%r3], [%r7], %d5, {IDESC}, %p4;"
        ))
    }
    fn copy(self) -> Text {
        self.add("@%p0 tcgen05.cp.cta_group::1.128x256b [%r3+64], %d4;")
    }
    fn sync(self) -> Text {
        self.add("bar.sync 0, 128;")
    }
    fn waits_for_stores(self) -> Text {
        self.add("tcgen05.wait::st.sync.aligned;")
    }
    fn done(self) -> Text {
        self.commit().wait(0, 0)
    }
    fn load_d(self) -> Text {
        self.load(0, 8).add("tcgen05.wait::ld.sync.aligned;")
    }
    /// All lanes store to columns 0..16, and are known to have.
    fn cleared(self) -> Text {
        self.fill_columns(0, 16).waits_for_stores().sync()
    }
}

#[test]
fn products_are_waited_for() {
    let issued = || Text::operands().product(0, 0, false);
    issued().done().load_d().is_right();
    issued()
        .sync()
        .load_d()
        .done()
        .says("warp 0 has committed nothing since then");
    issued()
        .commit()
        .sync()
        .load_d()
        .wait(0, 0)
        .says("for which this warp has not waited");
    // A commit that comes before the product says nothing of it.
    Text::operands()
        .product(0, 32, false)
        .commit()
        .product(0, 0, false)
        .wait(0, 0)
        .sync()
        .load_d()
        .says("warp 0 has committed nothing since then");
    // A commit by another thread neither.
    issued()
        .add("@%p2 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];")
        .wait(0, 0)
        .load_d()
        .says("warp 0 has committed nothing since then");
}

#[test]
fn stores_and_loads_are_waited_for() {
    let stored = || Text::operands().fill_columns(0, 16);
    stored().waits_for_stores().sync().product(0, 0, true).done().is_right();
    stored()
        .sync()
        .product(0, 0, true)
        .done()
        .says("tcgen05.wait::st by warp");
    stored()
        .waits_for_stores()
        .product(0, 0, true)
        .done()
        .says("nothing orders the two");
    stored().load_d().waits_for_stores().says("tcgen05.wait::st by warp");
    stored().waits_for_stores().load_d().is_right();
    let loaded = || Text::operands().cleared().load(0, 8);
    let again = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3], {%r5};\ntcgen05.wait::st.sync.aligned;";
    loaded().add(again).says("tcgen05.wait::ld by warp");
    loaded().add("tcgen05.wait::ld.sync.aligned;").add(again).is_right();
    loaded()
        .sync()
        .product(0, 0, false)
        .done()
        .says("tcgen05.wait::ld by warp");
    loaded()
        .add("tcgen05.wait::ld.sync.aligned;")
        .sync()
        .product(0, 0, false)
        .done()
        .is_right();
    loaded()
        .add("tcgen05.wait::ld.sync.aligned;")
        .product(0, 0, false)
        .done()
        .says("nothing orders the two");
}

#[test]
fn products_of_other_accumulators_are_not_in_order() {
    Text::operands()
        .product(0, 0, false)
        .product(0, 0, true)
        .done()
        .is_right();
    Text::operands()
        .product(0, 0, false)
        .product(0, 16, false)
        .done()
        .is_right();
    Text::operands()
        .product(0, 0, false)
        .product(0, 8, false)
        .done()
        .says("a product (tcgen05.mma) into tensor memory that warp 0 accumulates in");
    Text::operands()
        .product(0, 0, false)
        .wide_product(0)
        .done()
        .says("a product (tcgen05.mma) into tensor memory that warp 0 accumulates in");
    Text::operands()
        .product(0, 0, false)
        .done()
        .sync()
        .wide_product(0)
        .commit()
        .wait(0, 1)
        .is_right();
}

#[test]
fn products_of_two_threads_are_in_order_if_their_issues_are() {
    let second = |text: Text| {
        text.product(2, 0, true)
            .add("@%p2 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];")
            .wait(0, 0)
    };
    let first = || Text::operands().product(0, 0, false);
    second(
        first()
            .add("tcgen05.fence::before_thread_sync;")
            .sync()
            .add("tcgen05.fence::after_thread_sync;"),
    )
    .load_d()
    .is_right();
    second(first()).says("a product (tcgen05.mma) into tensor memory that warp 0 accumulates in");
}

#[test]
fn copies_are_waited_for_but_by_products() {
    Text::operands().copy().product_of_tensor().done().is_right();
    Text::operands()
        .copy()
        .sync()
        .load(64, 8)
        .done()
        .says("a load (tcgen05.ld) of tensor memory that warp 0 copies to");
    Text::operands()
        .copy()
        .copy()
        .done()
        .says("a copy (tcgen05.cp) to tensor memory that warp 0 copies to");
    Text::operands().copy().done().load(64, 8).is_right();
    // What a product reads is not written before it is complete.
    let reads = || Text::operands().copy().product_of_tensor();
    Text::operands()
        .copy()
        .done()
        .sync()
        .product_of_tensor()
        .copy()
        .commit()
        .wait(0, 1)
        .says("that warp 0 reads A from, for a product,");
    reads().done().sync().copy().commit().wait(0, 1).is_right();
    let store = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3+64], {%r0};\ntcgen05.wait::st.sync.aligned;";
    reads()
        .commit()
        .sync()
        .add(store)
        .wait(0, 0)
        .says("a store (tcgen05.st) to tensor memory");
    reads().done().add(store).is_right();
}

#[test]
fn operands_in_shared_memory_are_left_alone() {
    let issued = || Text::operands().product(0, 0, false);
    let store = format!("@%p0 st.shared.b32 [%r1+{DATA}], %r0;");
    issued()
        .commit()
        .add(&store)
        .wait(0, 0)
        .says("a store to shared memory that a tcgen05.mma or .cp of warp 0 reads");
    issued().done().add(&store).is_right();
    let load = format!(
        "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+16], 2048;
        @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+{DATA}], [%d0], 2048, [%r1+16];"
    );
    issued()
        .commit()
        .add(&load)
        .wait(16, 0)
        .wait(0, 0)
        .says("a bulk load overwrites shared memory that a tcgen05.mma");
    issued().done().add(&load).wait(16, 0).is_right();
    // The generic proxy's writes need a fence, and an order.
    let written = || Text::operands().add(&store);
    written()
        .product(0, 0, false)
        .done()
        .says("fence.proxy.async between the writes");
    written()
        .add("fence.proxy.async.shared::cta;")
        .product(0, 0, false)
        .done()
        .is_right();
    let other = format!("@%p2 st.shared.b32 [%r1+{DATA}], %r0;\nfence.proxy.async.shared::cta;");
    Text::operands()
        .add(&other)
        .product(0, 0, false)
        .done()
        .says("a store to shared memory that a tcgen05.mma or .cp of warp 0 reads");
    Text::operands()
        .add(&other)
        .sync()
        .product(0, 0, false)
        .done()
        .is_right();
    // So it is with copies.
    written().copy().done().says("fence.proxy.async between the writes");
}

#[test]
fn what_nothing_wrote_is_not_read() {
    Text::operands()
        .load_d()
        .says_undefined("tcgen05.ld of tensor memory that nothing wrote");
    Text::operands()
        .sync()
        .product(0, 0, true)
        .done()
        .says_undefined("an accumulator of tensor memory that nothing wrote");
    Text::operands()
        .product_of_tensor()
        .done()
        .says_undefined("an operand of tensor memory that nothing wrote");
    Text::operands()
        .cleared()
        .product(0, 0, true)
        .done()
        .load_d()
        .is_right();
}

#[test]
fn columns_are_given_back_when_all_is_done() {
    let issued = || Text::operands().product(0, 0, false);
    issued()
        .sync()
        .says("tcgen05.dealloc of tensor memory that warp 0 accumulates in");
    issued()
        .commit()
        .sync()
        .says("tcgen05.dealloc of tensor memory that warp 0 accumulates in");
    issued().done().is_right();
    let give = "@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r3, 512;";
    Text::operands()
        .cleared()
        .load(0, 8)
        .sync()
        .add(give)
        .ends_itself()
        .is_right();
    Text::new()
        .ends_itself()
        .says("ends with 512 columns of tensor memory allocated");
    Text::new()
        .add(give)
        .says("tcgen05.dealloc of what tcgen05.alloc did not return");
    Text::new()
        .add("@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r3, 256;")
        .says("tcgen05.dealloc of what tcgen05.alloc did not return");
    Text::new().sync().add(give).ends_itself().is_right();
}

#[test]
fn allocations_follow_their_rules() {
    let alloc =
        |n: u32, at: u32| format!("@%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+{at}], {n};");
    let give = |r: u32, n: u32| format!("@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r{r}, {n};");
    let relinquish = "@%p1 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;";
    let bare = || Text::bare().ends_itself();
    bare()
        .add(&alloc(64, 8))
        .add(relinquish)
        .add(&alloc(32, 12))
        .says("tcgen05.alloc after tcgen05.relinquish_alloc_permit");
    bare()
        .add(&alloc(64, 8))
        .add(&alloc(128, 12))
        .says("more columns than the allocation before");
    // The lowest aligned run.
    let got = bare()
        .add(&alloc(64, 8))
        .add(&alloc(64, 12))
        .add(&alloc(32, 32))
        .sync()
        .add("ld.shared.b32 %r3, [%r1+8];\nld.shared.b32 %r4, [%r1+12];\nld.shared.b32 %r5, [%r1+32];")
        .sync()
        .add(&give(3, 64))
        .add(&alloc(32, 36))
        .sync()
        .add("ld.shared.b32 %r6, [%r1+36];")
        .add("st.global.b32 [%d2], %r3;\nst.global.b32 [%d2+512], %r4;\nst.global.b32 [%d2+1024], %r5;\nst.global.b32 [%d2+1536], %r6;")
        .add(&give(4, 64))
        .add(&give(5, 32))
        .add(&give(6, 32))
        .words(&[], 512);
    assert_eq!([got[0], got[128], got[256], got[384]], [0, 64, 128, 0]);
    // Another warp waits for what this one gives back.
    let second = "@%p3 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+12], 512;";
    let both = bare().add(&alloc(512, 8)).sync().add("ld.shared.b32 %r3, [%r1+8];");
    both.clone()
        .add(second)
        .sync()
        .add(&give(3, 512))
        .says("wait for 512 columns of tensor memory");
    both.add(&give(3, 512))
        .add(second)
        .sync()
        .add("ld.shared.b32 %r4, [%r1+12];\n@%p3 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 512;")
        .is_right();
    // A number that is known only when it runs.
    bare()
        .add("mov.b32 %r5, 48;\n@%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+8], %r5;")
        .says("a power of two of columns from 32 to 512");
}

#[test]
fn addresses_and_lanes_are_legal() {
    let load = |to: &str| {
        Text::new()
            .cleared()
            .add(&format!("{to}\ntcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r16}}, [%r4];"))
    };
    load("add.u32 %r4, %r3, 15;\nadd.u32 %r4, %r4, 0;").is_right();
    load("mad.lo.u32 %r4, %r2, 2097152, %r3;").is_right();
    load("add.u32 %r4, %r3, 2097152;").says("lanes outside the warp's quarter");
    load("add.u32 %r4, %r3, 1048576;").says("misaligned lane");
    load("add.u32 %r4, %r3, %r0;").says("whose address differs between lanes");
    load("add.u32 %r4, %r3, 512;").says("columns of tensor memory that are not allocated");
    Text::new()
        .cleared()
        .add("setp.lt.u32 %p6, %r0, 16;\n@%p6 tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r16}, [%r3];")
        .says("not all lanes of the warp execute");
    let product = |idesc: u32| {
        Text::operands().add(&format!(
            "@%p0 tcgen05.mma.cta_group::1.kind::f16 [%r3], %d4, %d5, {idesc}, %p4;"
        ))
    };
    product(IDESC).done().is_right();
    for (idesc, what) in [
        (
            IDESC ^ 128 / 16 << 24 | 192 / 16 << 24,
            "an M (bits 24 to 28, in 16) of 64 or 128, not 192",
        ),
        (
            IDESC & !(63 << 17),
            "an N (bits 17 to 22, in 8) of up to 256 in steps of 8, not 0",
        ),
        (IDESC | 63 << 17, "of up to 256"),
        (IDESC | 2 << 7, "0 (f16) or 1 (bf16)"),
        (IDESC | 1 << 7, "A and B of one type"),
        (IDESC | 4, "no sparsity"),
        (IDESC | 8, "no saturation"),
        (IDESC | 1 << 23, "0 in bits 6, 23"),
        (IDESC ^ 3 << 4, "a D (bits 4 and 5) of 0 (f16) or 1 (f32)"),
    ] {
        product(idesc).says(what);
    }
    // All lanes of a warp issue.
    Text::operands()
        .product(1, 0, false)
        .says("by more than one thread of a warp");
    Text::operands()
        .product(0, 0, false)
        .add("@%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+24];")
        .says("by more than one thread of a warp");
    Text::operands()
        .product(0, 0, false)
        .add("setp.eq.u32 %p6, %r0, 1;\n@%p6 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];")
        .says("by a thread that has issued nothing, while another one of its warp has");
    Text::operands()
        .add("add.u32 %r4, %r3, 1048576;")
        .add(&format!(
            "@%p0 tcgen05.mma.cta_group::1.kind::f16 [%r4], %d4, %d5, {IDESC}, %p4;"
        ))
        .says("lane 0: 128 rows take all lanes");
    Text::operands()
        .add("mov.b64 %d4, 0x4000000000003fff;")
        .product(0, 0, false)
        .says("A outside of shared memory");
    Text::operands()
        .add("mov.b64 %d4, 0x2000000000000100;")
        .product(0, 0, false)
        .says("another swizzle than that of 32-byte atoms");
}

#[test]
fn pairs_are_refused() {
    Text::new()
        .add("@%p0 tcgen05.mma.cta_group::2.kind::f16 [%r3], %d4, %d4, 0, %p4;")
        .says("pairs of CTAs");
}

/// `cargo test --lib how_fast -- --ignored --nocapture`, of an optimised build.
#[test]
#[ignore = "a measurement"]
fn how_fast() {
    let kind = |a, d| Case::new(a, a, d, 128, 256);
    for (case, name) in [
        (kind(Element::F16, Accumulator::F32), "f16"),
        (kind(Element::Bf16, Accumulator::F32), "f16"),
        (kind(Element::E4m3, Accumulator::F32), "f8f6f4"),
        (kind(Element::S8, Accumulator::S32), "i8"),
    ] {
        let es = case.kind.a().bits() as u32 / 8;
        let mut smem = vec![0; DATA_BYTES as usize];
        let (a, b) = (random_bytes(128 * 32, 1), random_bytes(256 * 32, 2));
        let clean = |bytes: Vec<u8>| -> Vec<u8> { bytes.iter().map(|byte| byte & 0xbb).collect() };
        let a = place(&mut smem, 0, 128, es, &clean(a), K128);
        let b = place(&mut smem, 16 * 1024, 256, es, &clean(b), K128);
        let mut text = Text::new().add(&format!(
            "mov.b64 %d4, {a:#x};\nmov.b64 %d5, {b:#x};\nsetp.eq.u32 %p4, 0, 1;\nsetp.eq.u32 %p5, 1, 1;"
        ));
        let count = 500;
        for i in 0..count {
            text = text.add(&format!(
                "@%p0 tcgen05.mma.cta_group::1.kind::{name} [%r3], %d4, %d5, {}, %p{};",
                case.idesc(),
                if i == 0 { 4 } else { 5 }
            ));
        }
        let text = text.commit().wait(0, 0);
        for check in [crate::emulate::Check::Error, crate::emulate::Check::Off] {
            let options = Options { check, ..options() };
            let start = std::time::Instant::now();
            text.run(&smem, 128, &options).expect("it runs");
            let macs = f64::from(count) * f64::from(128 * 256 * 32 / es);
            println!(
                "{:?}, {check:?}: {:.2} GMAC/s",
                case.kind.a(),
                macs / start.elapsed().as_secs_f64() / 1e9
            );
        }
    }
}
