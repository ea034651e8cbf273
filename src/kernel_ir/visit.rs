//! What an op holds: values, uses of references, regions. The [table](super::table) of ops says it of each.
use super::entities::{Region, Value};
use super::op::OpKind;
use super::text::Text;
use super::view::RefUse;

/// Something an op holds.
pub enum Part<'a> {
    Value(&'a Value),
    Ref(&'a RefUse),
    Region(&'a Region),
}

/// The same, to be changed.
pub enum PartMut<'a> {
    Value(&'a mut Value),
    Ref(&'a mut RefUse),
    Region(&'a mut Region),
}

impl RefUse {
    /// Calls `f` on every value that the view or the place depends on.
    pub fn for_each_value(&self, f: &mut dyn FnMut(Value)) {
        let mut f = |part: Part<'_>| {
            if let Part::Value(v) = part {
                f(*v)
            }
        };
        self.steps.visit(&mut f);
        self.place.visit(&mut f);
    }

    /// Calls `f` on every value that the view or the place depends on, to replace it.
    pub fn map_values(&mut self, f: &mut dyn FnMut(&mut Value)) {
        let mut f = |part: PartMut<'_>| {
            if let PartMut::Value(v) = part {
                f(v)
            }
        };
        self.steps.visit_mut(&mut f);
        self.place.visit_mut(&mut f);
    }
}

/// Calls `f` on each value, use of a reference and region of an op, in the order of its fields.
pub fn for_each_part(kind: &OpKind, f: &mut dyn FnMut(Part<'_>)) {
    kind.visit(f)
}

/// The same, to be changed.
pub fn for_each_part_mut(kind: &mut OpKind, f: &mut dyn FnMut(PartMut<'_>)) {
    kind.visit_mut(f)
}

/// Calls `f` on each value that the op itself uses (not those used inside its regions), views' values included.
pub fn for_each_value(kind: &OpKind, f: &mut dyn FnMut(Value)) {
    for_each_part(kind, &mut |part| match part {
        Part::Value(v) => f(*v),
        Part::Ref(r) => r.for_each_value(f),
        Part::Region(_) => {}
    })
}

/// Calls `f` on each value that the op itself uses, to replace it.
pub fn map_values(kind: &mut OpKind, f: &mut dyn FnMut(&mut Value)) {
    for_each_part_mut(kind, &mut |part| match part {
        PartMut::Value(v) => f(v),
        PartMut::Ref(r) => r.map_values(f),
        PartMut::Region(_) => {}
    })
}

/// Calls `f` on each use of a reference.
pub fn for_each_ref(kind: &OpKind, f: &mut dyn FnMut(&RefUse)) {
    for_each_part(kind, &mut |part| {
        if let Part::Ref(r) = part {
            f(r)
        }
    })
}

/// Calls `f` on each use of a reference, to change it.
pub fn map_refs(kind: &mut OpKind, f: &mut dyn FnMut(&mut RefUse)) {
    for_each_part_mut(kind, &mut |part| {
        if let PartMut::Ref(r) = part {
            f(r)
        }
    })
}

/// Calls `f` on each region of the op.
pub fn for_each_region(kind: &OpKind, f: &mut dyn FnMut(Region)) {
    for_each_part(kind, &mut |part| {
        if let Part::Region(r) = part {
            f(*r)
        }
    })
}
