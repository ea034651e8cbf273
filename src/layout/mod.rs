//! Layouts: one algebra of digits for registers, shared and global memory, and the planners that it answers.
//!
//! A layout is a bijection, up to replication and padding, between digits: each logical dimension is a mixed radix
//! number ([`digits`]), and a layout has where each of its digits lives.
//! * [`register_layout`]: lane bits, warp bits, slots of a thread; [`tiled`] has Mosaic's layouts as instances;
//! * [`smem_layout`]: strides in bits, then one XOR; views (slices, transposes, reshapes) stay in the form;
//! * [`gf2`]: the matrix form of the power-of-two cases;
//! * [`transfer`]: plans for moving arrays between registers and memory, with [`address`]es split into bases and
//!   immediates; [`relayout`]: from any register layout to any other; [`tma`]: bulk copies; [`wgmma`]: matrix descriptors;
//!   [`dot`]: products of arrays; [`scan`]: running reductions; [`views`]: references as planners see them;
//! * [`signature`]: what layout every op needs of its operands and gives to its results, which [`infer`] makes true and
//!   [`verify_layouts`] checks; [`derivation`] and [`movement`]: how results follow from operands;
//! * [`facts`]: what planners may assume of values known only at run time.
//!
//! Everything here is pure data and deterministic, without PTX. Planners return plans that name registers (slots),
//! lane terms and immediates; `lower` emits them and discovers no illegality of its own.
pub mod address;
pub mod assignment;
pub mod derivation;
pub mod digits;
pub mod dot;
pub mod exchange;
pub mod facts;
pub mod gf2;
pub mod in_place;
pub mod infer;
pub mod movement;
pub mod register_layout;
pub mod relayout;
pub mod scan;
pub mod signature;
pub mod smem_layout;
pub mod sorting;
pub mod tensor_memory;
pub mod tiled;
pub mod tma;
pub mod transfer;
pub mod verify_layouts;
pub mod views;
pub mod wgmma;

pub use assignment::{Assignment, Choice, Reason, Subject};
pub use facts::{DynId, DynTerm, Fact, Start};
pub use register_layout::{Axis, Group, Place, ReducePlan, RegisterLayout, Source, Term};
pub use smem_layout::{Index, SmemView, Stride, Swizzle, ViewError};
pub use tiled::{Part, TiledLayout, TilingError};
