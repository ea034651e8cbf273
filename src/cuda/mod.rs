//! The CUDA driver, as much of it as launching needs. Without any IR.
//!
//! * `driver`: the entry points, looked up once by name; result codes are integers, for a driver may return codes
//!   that no enum of ours has. A machine without the driver gets an error, never a panic.
//! * [`Plan`]: what a kernel needs at launch, as plain data.
//! * [`Loaded`]: a plan with its module on one device. Loading may block; launching gathers pointers, copies the
//!   encoded tensor maps, sets their addresses and calls `cuLaunchKernelEx`: no allocation of device memory, no lock.
//! * [`PerDevice`]: where a kernel keeps what is loaded.
//! * `retire`: modules are unloaded late, at a point where nothing can be queued on them.
//! * [`HostCall`]: what the host does when a stream comes to it; [`Gate`]: where a stream waits for the host if it must.
//! * [`shared`]: memory that processes of one host share.
//! * [`standalone`]: a kernel on host data, with no JAX around.
mod device;
mod driver;
mod gate;
mod host_call;
mod kernel;
mod memory;
mod per_device;
mod plan;
mod retire;
pub mod shared;
pub mod standalone;

pub use device::{DeviceInfo, devices, driver_version};
pub use gate::Gate;
pub use host_call::HostCall;
pub use kernel::{Image, JitLog, Loaded, Resources, encode_map};
pub use memory::{DeviceMemory, copy_behind, host_words, reach, read_at_end};
pub use per_device::PerDevice;
pub use plan::{MAX_TENSOR_RANK, Param, Plan, TensorMap};
