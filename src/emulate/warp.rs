//! A warp: registers, masks, the stack of diverged lanes.
use super::check::{Hooks, Who};
use super::program::Program;
pub use super::row::lanes;
use super::row::{Lane, Raw, Row};
use super::shared::CtaSlot;
use crate::ptx::modifier::LoadSem;
use std::ptr::NonNull;

/// Where lanes that diverged reconverge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The `Join` where they reconverge.
    pub join: u32,
    /// All that reconverge there.
    pub all: u32,
    /// Lanes that have yet to run the other path, and where it starts.
    pub pending: u32,
    pub pending_pc: u32,
}

/// Why a warp does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Wait {
    #[default]
    No,
    /// An mbarrier of a CTA (slot), at a byte offset of its shared memory.
    Mbarrier {
        slot: CtaSlot,
        offset: u32,
        parity: u32,
    },
    Named {
        id: u32,
        generation: u64,
    },
    Cluster {
        generation: u64,
    },
    /// The other warps of its warpgroup to have done so many groups of wgmma.
    Products {
        group: u64,
    },
    /// A word of global memory to reach a value.
    Global {
        address: u64,
        value: u32,
    },
    /// A word of 64 bits to have a tag in its low 16.
    Tag {
        address: u64,
        tag: u32,
    },
    Registers {
        wanted: u32,
    },
    /// Columns of tensor memory that are free.
    Columns {
        columns: u32,
    },
    /// It polls, and has yielded.
    Poll,
}

/// A resumable warp.
pub struct Warp {
    pub pc: u32,
    /// Lanes that execute: the current path's, less those a guard holds back.
    pub exec: u32,
    /// `exec` as a row.
    pub exec_row: Row,
    /// Lanes of the current path.
    pub path: u32,
    /// Lanes that have not returned.
    pub alive: u32,
    pub stack: Vec<Split>,
    /// Made of a box, which is made again when the warp is dropped. It is kept as a pointer because a box is taken for the only way to its
    /// contents whenever it is moved or borrowed, and `read` has another.
    registers: NonNull<[Row]>,
    pub predicates: Box<[u32]>,
    /// Registers and constants, by the operand's top bit.
    bases: [*const Row; 2],
    pub cta: CtaSlot,
    /// Index in the CTA.
    pub index: u32,
    pub wait: Wait,
    /// Registers per thread that it holds of the SM's pool (`setmaxnreg`).
    pub held_registers: u32,
    /// Its arrival at a named barrier that it waits for: the barrier's generation then.
    pub named_ticket: Option<u64>,
    /// Its arrival at the cluster's barrier that lanes of it have not waited for: the barrier's generation then.
    pub cluster_ticket: Option<u64>,
    /// Those lanes.
    pub cluster_waits: u32,
    /// Lanes that have arrived there; the warp has when all have.
    pub cluster_arrived: u32,
    /// The carry in the condition code, by lanes.
    pub carry: u32,
    /// Lanes whose part of a blocked instruction is done.
    pub lanes_done: u32,
    /// Of the load that runs: others' stores may change what it reads at any time, unless weak.
    pub ordered: LoadSem,
    pub bulk: super::bulk::BulkGroups,
    pub copies: super::copies::CopyGroups,
    pub tensor: super::wgmma::Pipeline,
    pub tensor_stores: super::tensor_memory::Pending,
    /// Where its lanes are in their profiles.
    pub profile: Option<Box<super::profile::Tracks>>,
    /// Instructions executed.
    pub steps: u64,
}

impl Drop for Warp {
    fn drop(&mut self) {
        // SAFETY: made by `Box::leak` in `new`, and dropped once.
        drop(unsafe { Box::from_raw(self.registers.as_ptr()) });
    }
}

/// The top bit of an operand: a constant of the program.
pub const CONSTANT: u16 = 0x8000;

impl Warp {
    /// To a checker.
    #[inline(always)]
    pub fn who(&self) -> Who {
        Who {
            cta: self.cta,
            index: self.index,
        }
    }

    pub fn new<H: Hooks>(program: &Program<H>, cta: CtaSlot, index: u32) -> Warp {
        let registers = NonNull::from(Box::leak(vec![Row::ZERO; program.register_rows].into_boxed_slice()));
        let bases = [
            registers.cast::<Row>().as_ptr().cast_const(),
            program.constants.as_ptr(),
        ];
        Warp {
            pc: 0,
            exec: !0,
            exec_row: Row::splat(!0),
            path: !0,
            alive: !0,
            stack: vec![],
            registers,
            predicates: vec![0; program.predicates].into_boxed_slice(),
            bases,
            cta,
            index,
            wait: Wait::No,
            held_registers: 0,
            named_ticket: None,
            cluster_ticket: None,
            cluster_waits: 0,
            cluster_arrived: 0,
            carry: 0,
            lanes_done: 0,
            ordered: LoadSem::Weak,
            bulk: Default::default(),
            copies: Default::default(),
            tensor: Default::default(),
            tensor_stores: Default::default(),
            profile: None,
            steps: 0,
        }
    }

    /// Makes it ready to run a CTA from the start. Registers are poisoned.
    pub fn reset(&mut self, lanes: u32, poison: u32) {
        self.pc = 0;
        self.alive = lanes;
        self.path = lanes;
        self.set_exec(lanes);
        self.stack.clear();
        // SAFETY: made of a box, and `&mut self` ends every borrow of a row.
        unsafe { self.registers.as_mut() }.fill(Row::splat(poison));
        self.predicates.fill(poison);
        self.wait = Wait::No;
        self.named_ticket = None;
        self.cluster_ticket = None;
        self.cluster_waits = 0;
        self.cluster_arrived = 0;
        self.carry = 0;
        self.lanes_done = 0;
        self.bulk.clear();
        self.copies.clear();
        self.tensor.clear();
        self.tensor_stores.clear();
        self.profile = None;
    }

    #[inline(always)]
    pub fn set_exec(&mut self, exec: u32) {
        if self.exec != exec {
            self.exec = exec;
            self.exec_row = Row::of_mask(exec);
        }
    }

    /// The lanes of an operand.
    #[inline(always)]
    pub fn read<T: Lane>(&self, operand: u16) -> &[T::Raw; 32] {
        let base = self.bases[usize::from(operand >> 15)];
        // SAFETY: `Program::decode` gives out only operands whose rows lie within `register_rows` or `constants`, both of
        // which live as long as the warp and are never reallocated; `Row` is 128-byte aligned plain data, and writes go
        // through `&mut self`, which ends this borrow.
        unsafe { &*base.add(usize::from(operand & !CONSTANT)).cast::<[T::Raw; 32]>() }
    }

    /// The lanes of a register, to be written. Masks are the caller's business.
    #[inline(always)]
    pub fn register<T: Lane>(&mut self, operand: u16) -> &mut [T::Raw; 32] {
        // SAFETY: as in `read`; definitions are never constants.
        unsafe {
            let first = self.registers.cast::<Row>().as_ptr();
            &mut *first.add(usize::from(operand)).cast::<[T::Raw; 32]>()
        }
    }

    /// Writes the lanes that execute.
    #[inline(always)]
    pub fn write<T: Lane>(&mut self, operand: u16, values: [T::Raw; 32]) {
        if self.exec == !0 {
            *self.register::<T>(operand) = values;
        } else {
            let mask = self.exec_row.0;
            let old = self.register::<T>(operand);
            for i in 0..32 {
                old[i] = T::Raw::blend(mask[i], values[i], old[i]);
            }
        }
    }

    /// Writes one lane.
    #[inline(always)]
    pub fn set_lane<T: Lane>(&mut self, operand: u16, lane: usize, value: T::Raw) {
        self.register::<T>(operand)[lane] = value;
    }

    /// Writes the executing lanes of a predicate.
    #[inline(always)]
    pub fn write_predicate(&mut self, p: u16, bits: u32) {
        let old = &mut self.predicates[usize::from(p)];
        *old = (bits & self.exec) | (*old & !self.exec);
    }

    #[inline(always)]
    pub fn predicate(&self, p: u16) -> u32 {
        self.predicates[usize::from(p)]
    }

    /// The value of an operand in its lowest executing lane.
    #[inline(always)]
    pub fn first<T: Lane>(&self, operand: u16) -> T {
        T::from_raw(self.read::<T>(operand)[(self.exec.trailing_zeros() & 31) as usize])
    }

    /// The value of an operand if it is equal in all executing lanes.
    pub fn uniform<T: Lane>(&self, operand: u16) -> Option<T>
    where
        T::Raw: PartialEq,
    {
        let row = self.read::<T>(operand);
        let first = row[(self.exec.trailing_zeros() & 31) as usize];
        lanes(self.exec).all(|i| row[i] == first).then(|| T::from_raw(first))
    }

    /// The executing lanes diverge at a branch. `join` is where they reconverge.
    pub fn diverge(&mut self, taken: u32, then: u32, otherwise: u32, join: u32) {
        let not_taken = self.path & !taken;
        if not_taken == 0 {
            self.pc = then;
            return;
        }
        if taken == 0 {
            self.pc = otherwise;
            return;
        }
        // Lanes that leave a loop wait in the entry that its first leavers made.
        let direct = then == join || otherwise == join;
        let reuse = direct
            && self
                .stack
                .last()
                .is_some_and(|top| top.join == join && top.pending == 0);
        if !reuse {
            self.stack.push(Split {
                join,
                all: self.path,
                pending: 0,
                pending_pc: 0,
            });
        }
        if then == join {
            self.path = not_taken;
            self.pc = otherwise;
        } else {
            if otherwise != join {
                let top = self.stack.last_mut().expect("just pushed");
                (top.pending, top.pending_pc) = (not_taken, otherwise);
            }
            self.path = taken;
            self.pc = then;
        }
        self.set_exec(self.path);
    }

    /// At the join `here`: lanes that have yet to run the other path do so (true: `pc` is set), else all go on.
    pub fn join(&mut self, here: u32) -> bool {
        while let Some(top) = self.stack.last_mut().filter(|top| top.join == here) {
            let pending = top.pending & self.alive;
            top.pending = 0;
            if pending != 0 {
                self.pc = top.pending_pc;
                self.path = pending;
                self.set_exec(pending);
                return true;
            }
            self.path = top.all & self.alive;
            self.stack.pop();
        }
        self.set_exec(self.path);
        false
    }

    /// The lanes of the current path return. False: the warp has ended; else `pc` is set.
    pub fn leave(&mut self) -> bool {
        self.alive &= !self.path;
        self.path = 0;
        while let Some(top) = self.stack.last_mut() {
            let pending = top.pending & self.alive;
            top.pending = 0;
            if pending != 0 {
                self.pc = top.pending_pc;
                self.path = pending;
                self.set_exec(pending);
                return true;
            }
            let (all, join) = (top.all & self.alive, top.join);
            self.stack.pop();
            if all != 0 {
                self.pc = join;
                self.path = all;
                self.set_exec(all);
                return true;
            }
        }
        false
    }
}
