//! Kernels from the IR to the emulator.
use smalt::dtype::DType;
use smalt::emulate::{Contents, HostBuffer, testing};
use smalt::kernel_ir::testing::KernelBuilder;
use smalt::kernel_ir::{Kernel, ParamData, ParamRole, Value};
use smalt::layout;
use smalt::lower;
use smalt::ptx::launch::LaunchSpec;
use smalt::ptx::out_of_ssa::{self, Shell};
use smalt::ptx::{Flat, infer_uniformity};

/// Bytes of an operand or result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buffer(pub Vec<u8>);

impl Buffer {
    pub fn f32(xs: &[f32]) -> Buffer {
        Buffer(xs.iter().flat_map(|x| x.to_le_bytes()).collect())
    }
    pub fn as_f32(&self) -> Vec<f32> {
        self.0
            .chunks(4)
            .map(|c| f32::from_le_bytes(c.try_into().unwrap()))
            .collect()
    }
}

/// A kernel of one block: loads whole arrays, computes one, stores it.
pub fn one_block(
    inputs: &[(DType, &[u64])],
    output: (DType, &[u64]),
    f: impl FnOnce(&mut KernelBuilder, &[Value]) -> Value,
) -> Kernel {
    let mut b = KernelBuilder::new();
    let params: Vec<_> = inputs.iter().map(|(dtype, shape)| b.input(*dtype, shape)).collect();
    let out = b.output(output.0, output.1);
    let values: Vec<Value> = params.iter().map(|&p| b.load(b.whole(p))).collect();
    let result = f(&mut b, &values);
    let dst = b.whole(out);
    b.store(dst, result);
    b.finish()
}

/// A compiled kernel.
pub struct KernelRun {
    pub flat: Flat,
    pub launch: LaunchSpec,
    /// Bytes of each buffer, and whether the kernel writes it first.
    params: Vec<(usize, bool)>,
}

fn bytes_of(p: &ParamData) -> usize {
    p.ty.dtype().bytes(p.ty.shape().iter().product()).unwrap() as usize
}

fn is_output(p: &ParamData) -> bool {
    matches!(p.role, ParamRole::Output { .. })
}

impl KernelRun {
    /// Goes through all passes that follow normalisation.
    pub fn of(mut kernel: Kernel) -> KernelRun {
        let assignment = layout::infer::run(&mut kernel).unwrap();
        layout::verify_layouts::run(&kernel, &assignment.values).unwrap();
        let (exchanges, plan) = smalt::plan::scratch::allocate(&kernel, &assignment).unwrap();
        let accesses = smalt::plan::accesses::run(&kernel, &assignment).unwrap();
        smalt::plan::insert_barriers::run(&mut kernel, &assignment, &plan);
        let lower::Lowered { mut ssa, launch, .. } =
            lower::run(&kernel, &assignment, &plan, &exchanges, &accesses).unwrap();
        infer_uniformity::run(&mut ssa);
        let shell = Shell {
            launch: launch.clone(),
            target: kernel.target.name.into(),
            min_ctas_per_sm: None,
        };
        let flat = out_of_ssa::run(&ssa, shell).unwrap();
        let inputs = kernel
            .params
            .iter()
            .filter(|p| !is_output(p))
            .map(|p| (bytes_of(p), false));
        let outputs = kernel
            .params
            .iter()
            .filter(|p| is_output(p))
            .map(|p| (bytes_of(p), true));
        KernelRun {
            flat,
            launch,
            params: inputs.chain(outputs).collect(),
        }
    }

    /// The results, given the operands.
    pub fn run(&self, operands: &[Buffer]) -> Vec<Buffer> {
        let mut storage: Vec<Vec<u64>> = vec![];
        let mut operands = operands.iter();
        for &(bytes, is_output) in &self.params {
            let mut words = vec![0u64; bytes.div_ceil(8).max(2)];
            if !is_output {
                let given = &operands.next().expect("an operand for each parameter").0;
                assert_eq!(given.len(), bytes);
                for (i, byte) in given.iter().enumerate() {
                    words[i / 8] |= u64::from(*byte) << (8 * (i % 8));
                }
            }
            storage.push(words);
        }
        storage.extend(
            self.launch
                .scratch
                .iter()
                .map(|s| vec![0u64; s.bytes.div_ceil(8) as usize]),
        );
        let buffers: Vec<HostBuffer> = storage
            .iter_mut()
            .enumerate()
            .map(|(i, words)| {
                let (len, contents) = match self.params.get(i) {
                    Some((bytes, true)) => (*bytes, Contents::Undefined),
                    Some((bytes, false)) => (*bytes, Contents::Defined),
                    None => (words.len() * 8, Contents::Defined),
                };
                HostBuffer {
                    ptr: words.as_mut_ptr().cast(),
                    len,
                    contents,
                }
            })
            .collect();
        // SAFETY: the buffers are `storage`'s, which outlives the call and which nobody else touches.
        let report = unsafe { testing::run_checked(&self.flat, &buffers) };
        if let Err(e) = report {
            panic!("{e}\n{}", smalt::ptx::print::print(&self.flat));
        }
        let outputs = self
            .params
            .iter()
            .zip(&storage)
            .filter(|((_, is_output), _)| *is_output);
        outputs
            .map(|((bytes, _), words)| Buffer(words.iter().flat_map(|w| w.to_le_bytes()).take(*bytes).collect()))
            .collect()
    }
}
