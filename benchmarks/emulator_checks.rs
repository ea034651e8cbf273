//! What the emulator's checker costs, by sort of instruction: `cargo bench --profile dist --bench emulator_checks [-- filter]`.
//!
//! Each row is a kernel of four warps of one block whose loop is nothing but the instruction; nanoseconds of one warp's instruction, unchecked
//! and checked, and their ratio: the best of several runs, for the machine may be shared. Rows behind `exchange` have stores by other warps
//! and barriers between, as real kernels do.
use smalt::emulate::testing::{HostMemory, Runner};
use smalt::ptx::parse;
use std::time::{Duration, Instant};

const COPIES: usize = 16;
const TRIPS: usize = 500;

struct Case {
    name: &'static str,
    /// Before the loop.
    setup: &'static str,
    /// What is repeated; `#`: multiples of 4 that differ from copy to copy.
    body: &'static str,
    /// Warp instructions that count, of one repetition, of all four warps.
    counts: usize,
}

const LOADED: &str = "fence.proxy.async.shared::cta;
	setp.eq.u32 %p1, %r0, 0;
	@!%p1 bra L1; // reconverge L1
L0:
	mbarrier.init.shared::cta.b64 [%r1+65536], 1;
	fence.mbarrier_init.release.cluster;
L1:
	bar.sync 0, 128;
	mov.b32 %r9, 0;";

const CASES: &[Case] = &[
    Case { name: "add", setup: "", body: "add.u32 %r7, %r7, %r0;", counts: 4 },
    Case { name: "load shared, coalesced", setup: "", body: "ld.shared.b32 %r7, [%r2+#];", counts: 4 },
    Case { name: "load shared, scattered", setup: "", body: "ld.shared.b32 %r7, [%r3+#];", counts: 4 },
    Case { name: "load shared, 16 bytes scattered", setup: "", body: "ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r4];", counts: 4 },
    Case { name: "store shared, coalesced", setup: "", body: "st.shared.b32 [%r2], %r0;", counts: 4 },
    Case { name: "store shared, scattered", setup: "", body: "st.shared.b32 [%r3], %r0;", counts: 4 },
    Case { name: "store shared, 2 bytes", setup: "", body: "st.shared.b16 [%r5], %h0;", counts: 4 },
    Case {
        name: "exchange: store rows, load columns",
        setup: "",
        body: "st.shared.b32 [%r2], %r0;
	st.shared.b32 [%r2+4096], %r0;
	st.shared.b32 [%r2+8192], %r0;
	st.shared.b32 [%r2+12288], %r0;
	bar.sync 0, 128;
	ld.shared.b32 %r7, [%r6];
	ld.shared.b32 %r7, [%r6+4];
	ld.shared.b32 %r7, [%r6+8];
	ld.shared.b32 %r7, [%r6+12];
	bar.sync 0, 128;",
        counts: 32,
    },
    Case { name: "atom.shared, one address", setup: "", body: "atom.relaxed.cta.shared.add.u32 %r7, [%r1], %r0;", counts: 4 },
    Case { name: "load global, coalesced", setup: "", body: "ld.global.b32 %r7, [%d1+#];", counts: 4 },
    Case { name: "load global, scattered", setup: "", body: "ld.global.b32 %r7, [%d2+#];", counts: 4 },
    Case { name: "store global, coalesced", setup: "", body: "st.global.b32 [%d1], %r0;", counts: 4 },
    Case { name: "store global, scattered", setup: "", body: "st.global.b32 [%d2], %r0;", counts: 4 },
    Case { name: "red.global, one address", setup: "", body: "red.relaxed.gpu.global.add.u32 [%d0], %r0;", counts: 4 },
    Case { name: "red.global, coalesced", setup: "", body: "red.relaxed.gpu.global.add.u32 [%d1], %r0;", counts: 4 },
    Case { name: "red.global, scattered", setup: "", body: "red.relaxed.gpu.global.add.u32 [%d2], %r0;", counts: 4 },
    Case { name: "atom.global, one address", setup: "", body: "atom.relaxed.gpu.global.add.u32 %r7, [%d0], %r0;", counts: 4 },
    Case { name: "red.release.global, one address", setup: "", body: "red.release.gpu.global.add.u32 [%d0], %r0;", counts: 4 },
    Case {
        name: "load global, where there are atomics",
        setup: "red.relaxed.gpu.global.add.u32 [%d0+65536], %r0;",
        body: "ld.global.b32 %r7, [%d1+#];",
        counts: 4,
    },
    Case {
        name: "bulk load of 8 KB, and its wait",
        setup: LOADED,
        body: "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+65536], 8192;
	@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d0], 8192, [%r1+65536];
	{
	.reg .pred P;
W:
	mbarrier.try_wait.parity.shared::cta.b64 P, [%r1+65536], %r9;
	@P bra.uni D;
	bra.uni W;
D:
	}
	xor.b32 %r9, %r9, 1;
	bar.sync 0, 128;",
        counts: 1,
    },
    Case {
        name: "wgmma m64n8k16, and its wait",
        setup: "st.shared.b32 [%r2], %r7;
	fence.proxy.async.shared::cta;
	bar.sync 0, 128;
	mov.b64 %d3, 0x0000000800080040;
	setp.eq.u32 %p1, %r0, %r0;",
        body: "wgmma.fence.sync.aligned; // orders {%r20, %r21, %r22, %r23, %r24, %r25, %r26, %r27}
	wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r20, %r21, %r22, %r23}, {%r24, %r25, %r26, %r27}, %d3, %p1, 1, 1, 0;
	wgmma.commit_group.sync.aligned;
	wgmma.wait_group.sync.aligned 0; // settles {%r20, %r21, %r22, %r23}",
        counts: 4,
    },
];

fn kernel(case: &Case) -> String {
    let body: Vec<String> = (0..COPIES)
        .map(|i| case.body.replace('#', &(4 * (i % 8)).to_string()))
        .collect();
    format!(
        ".version 8.0
.target sm_90a
.address_size 64

.extern .shared .align 1024 .b8 smalt_smem[];

.visible .entry kernel(
	.param .b64 smalt_p0
)
.maxntid 128, 1, 1
{{
	.reg .pred %p<3>;
	.reg .b16 %h<1>;
	.reg .b32 %r<32>;
	.reg .b64 %d<4>;
B0:
	mov.u32 %r0, %tid.x;
	mov.u32 %r1, smalt_smem;
	mad.lo.u32 %r2, %r0, 4, %r1;
	mad.lo.u32 %r3, %r0, 132, %r1;
	mad.lo.u32 %r4, %r0, 144, %r1;
	mad.lo.u32 %r5, %r0, 2, %r1;
	mad.lo.u32 %r6, %r0, 128, %r1;
	cvt.u16.u32 %h0, %r0;
	mov.b32 %r7, 0;
	mad.lo.u32 %r14, %r0, 16, %r1;
	mov.b32 %r10, 0;
	mov.b32 %r11, 0;
	mov.b32 %r12, 0;
	mov.b32 %r13, 0;
	mov.b32 %r8, 0;
	bra.uni Z0;
Z0:
	st.shared.v4.b32 [%r14], {{%r10, %r11, %r12, %r13}};
	add.u32 %r14, %r14, 2048;
	add.u32 %r8, %r8, 1;
	setp.lt.u32 %p0, %r8, 64;
	@%p0 bra.uni Z0;
Z1:
	bar.sync 0, 128;
	ld.param.b64 %d0, [smalt_p0];
	mad.wide.u32 %d1, %r0, 4, %d0;
	mad.wide.u32 %d2, %r0, 132, %d0;
	{}
	mov.b32 %r8, 0;
	bra.uni B1;
B1:
	{}
	add.u32 %r8, %r8, 1;
	setp.lt.u32 %p0, %r8, {TRIPS};
	@%p0 bra.uni B1;
B2:
	ret;
}}
.file 1 \"smalt.op\"
",
        case.setup,
        body.join("\n\t")
    )
}

fn main() {
    let filter = std::env::args()
        .skip(1)
        .find(|arg| !arg.starts_with('-'))
        .unwrap_or_default();
    println!(
        "{:44} {:>10} {:>10} {:>7}",
        "nanoseconds of a warp's instruction", "unchecked", "checked", "ratio"
    );
    for case in CASES.iter().filter(|case| case.name.contains(&filter)) {
        let mut flat = parse::parse(&kernel(case)).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        flat.launch.smem_bytes = 1 << 17;
        let mut memory = HostMemory::new(&[1 << 17]);
        let best = [false, true].map(|checked| {
            let runner = Runner::new(&flat, checked).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            let (begin, mut best) = (Instant::now(), Duration::MAX);
            while begin.elapsed() < Duration::from_millis(400) {
                let start = Instant::now();
                if let Err(error) = runner.run(&mut memory) {
                    panic!("{}: {error}", case.name);
                }
                best = best.min(start.elapsed());
            }
            best.as_secs_f64() * 1e9 / (case.counts * COPIES * TRIPS) as f64
        });
        println!(
            "{:44} {:>10.1} {:>10.1} {:>7.2}",
            case.name,
            best[0],
            best[1],
            best[1] / best[0]
        );
    }
}
