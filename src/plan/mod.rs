//! Plans: where data lives and in what order it is touched, decided on the kernel before a line of PTX is written.
//!
//! * [`allocate`]: the places of data, barriers and scratch in shared memory;
//! * [`arrivals`]: which threads arrive on barriers, and how often;
//! * [`feeding_loops`]: loops in which a warpgroup does nothing but wait and issue loads;
//! * [`leader_loads`]: loads that one lane makes, for itself;
//! * [`parked`]: accumulators that do not fit into registers, and where their columns wait for a product;
//! * [`rendezvous`]: arrivals by which warpgroups take turns, and what they are tied to;
//! * [`scratch`]: what passes through shared memory that no user allocated;
//! * [`accesses`]: how ops load, store, copy and multiply what is in memory, by their [`views`](crate::layout::views) of it;
//! * [`insert_barriers`]: the barriers that program order needs, by what is [`pending`], which [`bytes`] it touches, from
//!   which lanes ([`footprint`]), and which slots were [refilled](refills) since;
//! * [`size`]: what is refused before anything is planned for it;
//! * [`traffic`]: what ops move, for reports;
//! * [`verify_order`]: whether they are enough, found by other means.
//!
//! Architecture invariant: this room reads the kernel and its layouts, and is without PTX.
pub mod accesses;
pub mod allocate;
pub mod arrivals;
pub mod bytes;
pub mod feeding_loops;
pub mod footprint;
pub mod insert_barriers;
pub mod leader_loads;
pub mod parked;
pub mod pending;
pub mod refills;
pub mod rendezvous;
pub mod scratch;
pub mod size;
pub mod traffic;
pub mod verify_order;

pub use accesses::Accesses;
pub use allocate::Allocation;
pub use arrivals::{Announces, ArrivesBy};
pub use feeding_loops::{FeedingLoops, FeedingPart};
pub use scratch::Exchanges;
