//! PTX that users write themselves, inside of kernels (`smalt.inline_ptx`).
//!
//! A text is instructions of the table ([`crate::ptx::table`]), read by the parser that reads printed PTX, and becomes part of the
//! kernel's own program: it is optimised, checked, printed and emulated like the rest of it.
//!
//! # Texts
//! ```text
//! text        = { statement }
//! statement   = ".reg" type name { "," name } ";"        a register, or `name<n>`: n of them
//!             | name ":"                                 a label
//!             | [ "@" [ "!" ] name ] "bra" [ ".uni" ] name ";"
//!             | [ "@" [ "!" ] name ] instruction ";"
//!             | "{" text "}"                             a scope of names
//! ```
//! A text that is `unchecked` is not read: it goes to the assembler as it is ([`Unchecked`]), and is taken to do anything.
//! `{0}`, `{1}`, … stand for the results and then the operands, of one with several registers for the list of them, of which `{0.1}` is
//! one; `//` and `/* */` begin comments. Registers that a path reads without having written them hold 0 on it.
//!
//! # The way
//! [`check`] reads every text of an imported kernel once, says what is wrong with it at the user's line, and notes on the op what it
//! does besides computing ([`Does`](crate::kernel_ir::Does)), and which references it only loads from ([`reads`]). Lowering reads it
//! again ([`parse`]), and [`emit`]s it for every element that a lane has; once, where it sees all of them ([`Whole`](crate::kernel_ir::Whole)).
pub mod check;
mod emit;
mod in_flight;
mod lex;
mod nearest;
mod parse;
mod program;
mod reads;
mod text;
mod unchecked;

pub use emit::emit;
pub use parse::{Interface, Limits, parse};
pub use program::{Program, Statement};
pub use text::Text;
pub use unchecked::Unchecked;
