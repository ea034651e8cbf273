//! The checker of memory order: each of its rules on a right kernel and on a broken twin, and the corpus.
mod corpus;
mod harness;
mod programs;
mod rules;
