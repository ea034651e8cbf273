//! Copies that go on by themselves: of a few bytes, in bulk, of boxes of tensor maps.
use super::Hooks;
use super::decoder::{At, Decoder, List, NONE, Operands, micro_ops, no};
use crate::emulate::agents::{self, Bulk, BulkKind, BulkOp};
use crate::emulate::copies::{ALL_TAKEN, CopyArrive, CopyArriveMore, CopyAsync, CopyCommit, CopyWait, CopyWaitAll};
use crate::emulate::mem::atom_bytes;
use crate::emulate::sync::ARRIVE;
use crate::error::{Error, Result};
use crate::ptx::modifier::{BulkWait, *};

impl<H: Hooks> Decoder<'_, H> {
    pub fn copy_async(&mut self, cache: CopyCache, hint: PrefetchSize, dst: At, src: At, bytes: i64) {
        self.copy_async_partly(cache, hint, dst, src, bytes, ALL_TAKEN);
    }
    pub fn copy_arrive(&mut self, counted: Counted, addr: At) {
        let one = self.one();
        match counted {
            Counted::Yes => self.mbarrier::<CopyArrive>(addr, one, ARRIVE),
            // The barrier takes one arrival more, which is this one: how many others it takes stays as it is.
            Counted::No => self.mbarrier::<CopyArriveMore>(addr, one, ARRIVE),
        }
    }
}

/// A bulk operation of which only the kind is known.
fn of(kind: BulkKind) -> BulkOp {
    BulkOp {
        kind,
        shared: (0, 0),
        other: (0, 0),
        bytes: 0,
        barrier: (0, 0),
        mask: None,
        map: 0,
        coords: vec![],
        reduce: None,
        reduce_elements: None,
        values: vec![],
        value_bytes: 0,
    }
}

/// Rows that are bulk operations: their fields, the kind, and the operation's parts.
macro_rules! bulk_operations {
    ($($method:ident($($field:ident: $t:ty),*) $kind:ident { $($part:tt)* })+) => {
        impl<H: Hooks> Decoder<'_, H> {$(
            pub fn $method(&mut self, $($field: $t),*) -> Result<()> {
                self.bulk(BulkOp { $($part)*, ..of(BulkKind::$kind) })
            }
        )+}
    };
}
bulk_operations! {
    bulk_load(dst: At, src: At, bytes: u16, bar: At) Load { shared: dst, other: src, barrier: bar, bytes }
    bulk_load_multicast(dst: At, src: At, bytes: u16, bar: At, mask: u16)
        Load { shared: dst, other: src, barrier: bar, bytes, mask: Some(mask) }
    bulk_store(dst: At, src: At, bytes: u16) Store { shared: src, other: dst, bytes }
    bulk_reduce(op: BulkRed, dst: At, src: At, bytes: u16)
        Store { shared: src, other: dst, bytes, reduce_elements: Some(op.parts()) }
    bulk_copy_cluster(dst: At, src: At, bytes: u16, bar: At) Copy { shared: dst, other: src, barrier: bar, bytes }
    bulk_prefetch(src: At, bytes: u16) Prefetch { other: src, bytes }
    tensor_load(dst: At, map: u16, coords: List, bar: At) TensorLoad { shared: dst, barrier: bar, map, coords }
    tensor_load_multicast(dst: At, map: u16, coords: List, bar: At, mask: u16)
        TensorLoad { shared: dst, barrier: bar, map, coords, mask: Some(mask) }
    tensor_store(map: u16, coords: List, src: At) TensorStore { shared: src, map, coords }
    tensor_reduce(op: TensorRed, map: u16, coords: List, src: At)
        TensorStore { shared: src, map, coords, reduce: Some(op) }
    tensor_prefetch(map: u16, coords: List) TensorPrefetch { map, coords }
    red_async(op: RedOp, ty: AtomType, addr: At, a: u16, bar: At)
        ReduceAsync { shared: addr, barrier: bar, values: vec![a], value_bytes: atom_bytes(ty), reduce_elements: Some((op.as_atom(), ty)) }
}

impl<H: Hooks> Decoder<'_, H> {
    fn bulk(&mut self, op: BulkOp) -> Result<()> {
        let is_tensor = matches!(
            op.kind,
            BulkKind::TensorLoad | BulkKind::TensorStore | BulkKind::TensorPrefetch
        );
        if is_tensor && !(1..=5).contains(&op.coords.len()) {
            return Err(Error::internal("a bulk tensor copy")
                .expected("1 to 5 coordinates")
                .got(op.coords.len().to_string()));
        }
        // Global memory that is combined with what is there.
        self.program.communicates |= op.reduce.is_some() || op.kind == BulkKind::Store && op.reduce_elements.is_some();
        let o = NONE
            .imm(self.program.code.len() as i32)
            .aux(self.program.bulk_ops.len() as u32);
        self.program.bulk_ops.push(op);
        self.emit::<Bulk>(o);
        Ok(())
    }
    pub fn st_async(&mut self, ty: MemType, addr: At, values: List, bar: At) -> Result<()> {
        let value_bytes = match ty {
            MemType::B32 => 4,
            MemType::B64 => 8,
            MemType::U8 | MemType::S8 | MemType::B16 => return no("st.async of less than 32 bits"),
        };
        self.bulk(BulkOp {
            shared: addr,
            barrier: bar,
            values,
            value_bytes,
            ..of(BulkKind::StoreAsync)
        })
    }
}

micro_ops! {
    copy_async_partly(_: CopyCache, _: PrefetchSize, dst: At, src: At, bytes: i64, taken: u16)
        = CopyAsync { d: bytes as u16, b: src.0, c: taken, aux: src.1 as u32 } at dst;
    copy_commit() = CopyCommit {};
    copy_wait(n: i64) = CopyWait { imm: i32::try_from(n).unwrap_or(i32::MAX) };
    copy_wait_all() = CopyWaitAll {};
    bulk_commit() = agents::BulkCommit {};
    bulk_wait(what: BulkWait, n: i64) = agents::BulkWait { c: (what == BulkWait::Read).into(), imm: n as i32 };
}
