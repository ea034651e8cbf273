//! The text of kernels, for dumps and tests: [`Text`], which says of a type how it is printed and read, once.
//!
//! Here are the trait, the macros that derive it (`names!`: enums of names; `texts!`: structs and enums with fields) and what
//! fields are made of: numbers, texts, lists, options, ids. Memory and layouts are in [`memory`] and [`layout`], ops in
//! [`op`](super::op), what is around them in [`print`](super::print) and [`parse`](super::parse).
//!
//! **Fields** print in the order of their row, each behind its label: the literal in front of it or, of numbers, flags and lists of
//! them, the field's name. What is absent (`None`, `false`, an empty list, the default that a row gives) is left out with its label.
use super::entities::{Alloc, Axis, Region, Value};
use super::parse::{Parser, Result};
use super::print::Printer;
use super::types::{Group, Shape};
use super::visit::{Part, PartMut};
use crate::dtype::DType;
use std::fmt::{self, Write};

mod layout;
mod memory;

/// Something that stands in a kernel's text.
pub trait Text: Sized {
    /// Whether a field's name is its label where the row gives none.
    const LABELLED: bool = false;

    fn print(&self, p: &mut Printer<'_>) -> fmt::Result;
    fn parse(p: &mut Parser<'_>) -> Result<Self>;

    fn print_field(&self, label: &str, p: &mut Printer<'_>) -> fmt::Result {
        p.label(label)?;
        p.blank();
        self.print(p)
    }
    fn parse_field(label: &str, p: &mut Parser<'_>) -> Result<Self> {
        p.expect(label)?;
        Self::parse(p)
    }

    /// `(a,b)`
    fn print_list(list: &[Self], p: &mut Printer<'_>) -> fmt::Result {
        p.write_char('(')?;
        p.list(",", list)?;
        p.write_char(')')
    }
    fn parse_list(p: &mut Parser<'_>) -> Result<Vec<Self>> {
        p.expect("(")?;
        p.list(")", Self::parse)
    }

    /// Calls `f` on each value, use of a reference and region that it holds.
    fn visit(&self, _f: &mut dyn FnMut(Part<'_>)) {}
    /// The same, to be changed.
    fn visit_mut(&mut self, _f: &mut dyn FnMut(PartMut<'_>)) {}
}

/// A field's label.
pub(super) const fn label<T: Text>(given: Option<&'static str>, name: &'static str) -> &'static str {
    match given {
        Some(label) => label,
        None if T::LABELLED => name,
        None => "",
    }
}

/// The literal in front of a field, if there is one.
macro_rules! given {
    () => {
        None
    };
    ($label:literal) => {
        Some($label)
    };
}

macro_rules! print_field {
    ($p:ident, $field:ident: $ty:ty, [$($label:literal)?], [$($default:expr)?]) => {
        if true $(&& *$field != $default)? {
            let label = $crate::kernel_ir::text::label::<$ty>($crate::kernel_ir::text::given!($($label)?), stringify!($field));
            $crate::kernel_ir::text::Text::print_field($field, label, $p)?;
        }
    };
}

macro_rules! parse_field {
    ($p:ident, $field:ident: $ty:ty, [$($label:literal)?], []) => {{
        let label = $crate::kernel_ir::text::label::<$ty>($crate::kernel_ir::text::given!($($label)?), stringify!($field));
        <$ty as $crate::kernel_ir::text::Text>::parse_field(label, $p)?
    }};
    ($p:ident, $field:ident: $ty:ty, [$($label:literal)?], [$default:expr]) => {
        match $p.eat($crate::kernel_ir::text::label::<$ty>($crate::kernel_ir::text::given!($($label)?), stringify!($field))) {
            true => <$ty as $crate::kernel_ir::text::Text>::parse($p)?,
            false => $default,
        }
    };
}

/// Both walks over what a value of some form holds.
macro_rules! visits {
    ($($form:pat => [$($part:ident),*]),* $(,)?) => {
        #[allow(unused_variables)]
        fn visit(&self, f: &mut dyn FnMut($crate::kernel_ir::visit::Part<'_>)) {
            match self { $($form => { $($crate::kernel_ir::text::Text::visit($part, f);)* })* }
        }
        #[allow(unused_variables)]
        fn visit_mut(&mut self, f: &mut dyn FnMut($crate::kernel_ir::visit::PartMut<'_>)) {
            match self { $($form => { $($crate::kernel_ir::text::Text::visit_mut($part, f);)* })* }
        }
    };
}

/// An enum of names, and what one is called in messages.
macro_rules! names {
    ($what:literal
     $(#[$meta:meta])*
     pub enum $ty:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum $ty { $($(#[$doc])* $variant,)* }

        impl $ty {
            pub const ALL: &[$ty] = &[$($ty::$variant),*];
            /// The name in dumps.
            pub const fn name(self) -> &'static str {
                match self { $($ty::$variant => $name),* }
            }
            /// The member with this name.
            pub fn from_name(name: &str) -> Option<$ty> {
                $ty::ALL.iter().copied().find(|x| x.name() == name)
            }
        }

        impl $crate::kernel_ir::text::Text for $ty {
            fn print(&self, p: &mut $crate::kernel_ir::print::Printer<'_>) -> std::fmt::Result {
                std::fmt::Write::write_str(p, self.name())
            }
            fn parse(p: &mut $crate::kernel_ir::parse::Parser<'_>) -> $crate::kernel_ir::parse::Result<$ty> {
                p.name($what, $ty::from_name)
            }
        }
    };
}

/// A struct, or an enum whose variants begin with a word, with the labels of its fields.
macro_rules! texts {
    ($(#[$meta:meta])*
     pub struct $ty:ident {
         $($(#[$doc:meta])* $($label:literal)? $field:ident : $fty:ty $(= $default:expr)?),* $(,)?
     }) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        pub struct $ty { $($(#[$doc])* pub $field: $fty),* }

        impl $crate::kernel_ir::text::Text for $ty {
            fn print(&self, p: &mut $crate::kernel_ir::print::Printer<'_>) -> std::fmt::Result {
                let $ty { $($field),* } = self;
                $($crate::kernel_ir::text::print_field!(p, $field: $fty, [$($label)?], [$($default)?]);)*
                Ok(())
            }
            fn parse(p: &mut $crate::kernel_ir::parse::Parser<'_>) -> $crate::kernel_ir::parse::Result<$ty> {
                $(let $field = $crate::kernel_ir::text::parse_field!(p, $field: $fty, [$($label)?], [$($default)?]);)*
                Ok($ty { $($field),* })
            }
            $crate::kernel_ir::text::visits!($ty { $($field),* } => [$($field),*]);
        }
    };
    ($what:literal
     $(#[$meta:meta])*
     pub enum $ty:ident {
         $($(#[$vdoc:meta])* $variant:ident $name:literal
           $(($of:ident : $oty:ty))?
           $({ $($(#[$doc:meta])* $($label:literal)? $field:ident : $fty:ty $(= $default:expr)?),* $(,)? })?
         ),* $(,)?
     }) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        pub enum $ty { $($(#[$vdoc])* $variant $(($oty))? $({ $($(#[$doc])* $field: $fty),* })?),* }

        #[allow(unused_variables)]
        impl $crate::kernel_ir::text::Text for $ty {
            fn print(&self, p: &mut $crate::kernel_ir::print::Printer<'_>) -> std::fmt::Result {
                match self {
                    $($ty::$variant $(($of))? $({ $($field),* })? => {
                        std::fmt::Write::write_str(p, $name)?;
                        $(
                            p.blank();
                            $crate::kernel_ir::text::Text::print($of, p)?;
                        )?
                        $($($crate::kernel_ir::text::print_field!(p, $field: $fty, [$($label)?], [$($default)?]);)*)?
                    })*
                }
                Ok(())
            }
            fn parse(p: &mut $crate::kernel_ir::parse::Parser<'_>) -> $crate::kernel_ir::parse::Result<$ty> {
                let name = p.name($what, |name| [$($name),*].into_iter().find(|n| *n == name))?;
                $(if name == $name {
                    $(let $of = <$oty as $crate::kernel_ir::text::Text>::parse(p)?;)?
                    $($(let $field = $crate::kernel_ir::text::parse_field!(p, $field: $fty, [$($label)?], [$($default)?]);)*)?
                    return Ok($ty::$variant $(($of))? $({ $($field),* })?);
                })*
                unreachable!("a name of the list")
            }
            $crate::kernel_ir::text::visits!($($ty::$variant $(($of))? $({ $($field),* })? => [$($of)? $($($field),*)?]),*);
        }
    };
}
pub(super) use {given, names, parse_field, print_field, texts, visits};

// ------------------------------------------------------------ numbers and texts
macro_rules! numbers {
    ($($ty:ty)*) => {$(
        impl Text for $ty {
            const LABELLED: bool = true;
            fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
                write!(p, "{self}")
            }
            fn parse(p: &mut Parser<'_>) -> Result<$ty> {
                p.number()
            }
        }
    )*};
}
numbers!(u32 u64 i32 i64);

/// A flag: its name, or nothing.
impl Text for bool {
    const LABELLED: bool = true;
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        write!(p, "{self}")
    }
    fn parse(p: &mut Parser<'_>) -> Result<bool> {
        p.name("flag", |name| name.parse().ok())
    }
    fn print_field(&self, label: &str, p: &mut Printer<'_>) -> fmt::Result {
        if *self { p.label(label) } else { Ok(()) }
    }
    fn parse_field(label: &str, p: &mut Parser<'_>) -> Result<bool> {
        Ok(p.eat(label))
    }
}

impl Text for String {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        write!(p, "{self:?}")
    }
    fn parse(p: &mut Parser<'_>) -> Result<String> {
        p.quoted()
    }
}

impl Text for DType {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        write!(p, "{self}")
    }
    fn parse(p: &mut Parser<'_>) -> Result<DType> {
        p.name("element type", DType::from_short)
    }
}

impl Text for Group {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        write!(p, "{self}")
    }
    fn parse(p: &mut Parser<'_>) -> Result<Group> {
        let of = |name: &str| {
            [Group::Warp, Group::Warpgroup, Group::Block]
                .into_iter()
                .find(|g| g.to_string() == name)
        };
        p.name("group", of)
    }
}

/// A range, both ends included.
impl Text for (u32, u32) {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        write!(p, "{}..={}", self.0, self.1)
    }
    fn parse(p: &mut Parser<'_>) -> Result<(u32, u32)> {
        let first = p.number()?;
        p.expect("..=")?;
        Ok((first, p.number()?))
    }
}

// ------------------------------------------------------------ what holds others
impl<T: Text> Text for Option<T> {
    const LABELLED: bool = T::LABELLED;
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        match self {
            Some(x) => x.print(p),
            None => p.write_str("none"),
        }
    }
    fn parse(p: &mut Parser<'_>) -> Result<Option<T>> {
        match p.eat("none") {
            true => Ok(None),
            false => T::parse(p).map(Some),
        }
    }
    fn print_field(&self, label: &str, p: &mut Printer<'_>) -> fmt::Result {
        self.as_ref().map_or(Ok(()), |x| x.print_field(label, p))
    }
    fn parse_field(label: &str, p: &mut Parser<'_>) -> Result<Option<T>> {
        p.eat(label).then(|| T::parse(p)).transpose()
    }
    visits!(Some(x) => [x], None => []);
}

/// A list behind an empty label is there even if it has no elements.
impl<T: Text> Text for Vec<T> {
    const LABELLED: bool = T::LABELLED;
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        T::print_list(self, p)
    }
    fn parse(p: &mut Parser<'_>) -> Result<Vec<T>> {
        T::parse_list(p)
    }
    fn print_field(&self, label: &str, p: &mut Printer<'_>) -> fmt::Result {
        match self.is_empty() && !label.is_empty() {
            true => Ok(()),
            false => {
                p.label(label)?;
                p.blank();
                self.print(p)
            }
        }
    }
    fn parse_field(label: &str, p: &mut Parser<'_>) -> Result<Vec<T>> {
        match p.eat(label) {
            true => Self::parse(p),
            false => Ok(vec![]),
        }
    }
    fn visit(&self, f: &mut dyn FnMut(Part<'_>)) {
        self.iter().for_each(|x| x.visit(f));
    }
    fn visit_mut(&mut self, f: &mut dyn FnMut(PartMut<'_>)) {
        self.iter_mut().for_each(|x| x.visit_mut(f));
    }
}

impl Text for Shape {
    const LABELLED: bool = true;
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        u64::print_list(self, p)
    }
    fn parse(p: &mut Parser<'_>) -> Result<Shape> {
        Ok(u64::parse_list(p)?.into())
    }
}

impl<T: Text> Text for Box<T> {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        (**self).print(p)
    }
    fn parse(p: &mut Parser<'_>) -> Result<Box<T>> {
        T::parse(p).map(Box::new)
    }
    fn visit(&self, f: &mut dyn FnMut(Part<'_>)) {
        (**self).visit(f);
    }
    fn visit_mut(&mut self, f: &mut dyn FnMut(PartMut<'_>)) {
        (**self).visit_mut(f);
    }
}

// ------------------------------------------------------------ ids
impl Text for Axis {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        write!(p, "{self}")
    }
    fn parse(p: &mut Parser<'_>) -> Result<Axis> {
        p.known("axis", "an axis", |kernel, axis| kernel.axes.is_valid(axis))
    }
}

impl Text for Alloc {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        write!(p, "{self}")
    }
    fn parse(p: &mut Parser<'_>) -> Result<Alloc> {
        p.known("alloc", "an allocation", |kernel, alloc| kernel.allocs.is_valid(alloc))
    }
}

/// `%v3`, or a scalar constant; of several, `%v3, 1`.
impl Text for Value {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        p.value(*self)
    }
    fn parse(p: &mut Parser<'_>) -> Result<Value> {
        p.value()
    }
    fn print_list(list: &[Value], p: &mut Printer<'_>) -> fmt::Result {
        p.list(", ", list)
    }
    fn parse_list(p: &mut Parser<'_>) -> Result<Vec<Value>> {
        p.values()
    }
    fn visit(&self, f: &mut dyn FnMut(Part<'_>)) {
        f(Part::Value(self));
    }
    fn visit_mut(&mut self, f: &mut dyn FnMut(PartMut<'_>)) {
        f(PartMut::Value(self));
    }
}

/// Parameters and ops; of several, `case 0 {…} case 1 {…}`.
impl Text for Region {
    fn print(&self, p: &mut Printer<'_>) -> fmt::Result {
        p.region(*self)
    }
    fn parse(p: &mut Parser<'_>) -> Result<Region> {
        p.region()
    }
    fn print_list(list: &[Region], p: &mut Printer<'_>) -> fmt::Result {
        list.iter().enumerate().try_for_each(|(i, region)| {
            p.blank();
            write!(p, "case {i}")?;
            p.blank();
            region.print(p)
        })
    }
    fn parse_list(p: &mut Parser<'_>) -> Result<Vec<Region>> {
        let mut arms = vec![];
        while p.eat("case") {
            p.numbered("case ", arms.len())?;
            arms.push(p.region()?);
        }
        Ok(arms)
    }
    fn visit(&self, f: &mut dyn FnMut(Part<'_>)) {
        f(Part::Region(self));
    }
    fn visit_mut(&mut self, f: &mut dyn FnMut(PartMut<'_>)) {
        f(PartMut::Region(self));
    }
}
