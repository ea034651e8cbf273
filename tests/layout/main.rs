//! Layouts, and what planners make of them, on random layouts, views and parts.
mod registers;
mod relayouts;
mod signatures;
mod testing;
mod tma;
mod transfers;
