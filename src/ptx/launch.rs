//! What a compiled kernel needs at launch: plain data that the driver and the emulator both read.
use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};

/// A launch of one kernel.
///
/// Buffers are numbered: the operands of the custom call, then its results (an aliased result *is* its operand's
/// buffer), then the scratch buffers of [`LaunchSpec::scratch`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LaunchSpec {
    /// The entry's symbol.
    pub entry: String,
    /// CTAs along x, y, z.
    pub grid: [u32; 3],
    /// CTAs of a cluster along x, y, z; divides `grid`.
    pub cluster: [u32; 3],
    /// Threads of a CTA, along x.
    pub block: u32,
    /// Dynamic shared memory, in bytes; its start is 1024-byte aligned by the kernel's own declaration.
    pub smem_bytes: u32,
    /// The entry's parameters, in order.
    pub params: Vec<EntryParam>,
    /// GMEM scratch that the caller allocates and zeroes before every launch.
    pub scratch: Vec<Scratch>,
    /// Tensor maps that the caller writes to memory, and whose addresses the kernel sets: `buffer` and `byte_offset` mean nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub map_templates: Vec<TensorMapSpec>,
    /// The kernel executes `griddepcontrol.wait`.
    pub uses_programmatic_launch: bool,
    /// The devices that run the kernel together, where it asks which one it is on, or talks to the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mesh: Option<MeshUse>,
    /// The buffer that the kernel's prints go to ([`Printer`]), if it has any: behind all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub printer: Option<u32>,
    /// What each launch records of when ranges of the kernel begin and end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Where waits have a limit: the buffer, one of the scratch, in which the kernel leaves that one took longer ([`GaveUp`]). The host looks
    /// there behind each launch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gives_up: Option<u32>,
}

impl LaunchSpec {
    /// Bytes of the entry's parameters; maps are aligned to half of their size.
    pub fn param_bytes(&self) -> u64 {
        self.params.iter().fold(0, |bytes: u64, param| match param {
            EntryParam::Pointer { .. } | EntryParam::Row { .. } => bytes + 8,
            EntryParam::TensorMap(_) => bytes.next_multiple_of(64) + 128,
        })
    }

    /// Of a block of as many threads that gets nothing: what code is looked at by itself is launched so.
    pub fn of_one_block(threads: u32) -> LaunchSpec {
        LaunchSpec {
            entry: "code".into(),
            grid: [1; 3],
            cluster: [1; 3],
            block: threads,
            smem_bytes: 0,
            params: vec![],
            scratch: vec![],
            map_templates: vec![],
            uses_programmatic_launch: false,
            mesh: None,
            printer: None,
            profile: None,
            gives_up: None,
        }
    }

    /// Whether a buffer is the launch's own: the profile's or the printer's.
    pub fn is_of_launch(&self, buffer: u32) -> bool {
        let profile = self.profile.as_ref().map(|profile| profile.buffer);
        [self.printer, profile].contains(&Some(buffer))
    }

    /// Bytes of the memory of its profile; none: it has none.
    pub fn profile_bytes(&self) -> Option<u64> {
        let profile = self.profile.as_ref()?;
        let blocks = self.grid.iter().map(|n| u64::from(*n)).product::<u64>();
        Some(blocks * u64::from(profile.tracks) * profile.track_bytes())
    }

    /// What the kernel needs to talk to other devices, if it does.
    pub fn exchange(&self) -> Option<&Exchange> {
        self.mesh.as_ref()?.exchange.as_ref()
    }
}

/// What a kernel of several devices needs besides the call's arrays. Its buffers come behind the scratch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MeshUse {
    /// How many run it.
    pub devices: u32,
    /// The buffer with the executing device's position among them: one `u32`.
    pub position: u32,
    pub exchange: Option<Exchange>,
}

/// The memory that the prints of one launch go to, which the host reads when the kernel has ended.
///
/// A counter of 64 bits of the bytes that were asked for; one of 32 bits of the prints for which there was no room; at [`Printer::CAPACITY`] how many
/// bytes there are for records, which begin at [`Printer::RECORDS`]. A record has a multiple of 16 bytes: [`Printer::HEADER`] words of 32 bits (its
/// bytes; the print's number; the block's, along the grid's and then the cluster's axes, row-major; the warp's in the block), then the
/// print's own. The first that does not fit is the last for which anybody finds room.
pub struct Printer;

impl Printer {
    pub const CURSOR: u64 = 0;
    pub const DROPPED: u64 = 8;
    pub const CAPACITY: u64 = 16;
    pub const RECORDS: u64 = 64;
    /// Words before a record's own.
    pub const HEADER: usize = 4;
}

/// The memory for one launch's profile: a track for each warpgroup, or warp, of each block, the blocks along the grid's, then the cluster's
/// axes, row-major.
///
/// A track begins with the multiprocessor's number and how many marks were made, more than it has room for if some were dropped (32 bits each);
/// then `%globaltimer` and `%clock64` as the kernel begins, and both as it ends (64 bits each). Marks follow, two words of 32 bits each: the
/// range's number, with [`Profile::ENDS`] where it ends, and `%clock`. One lane writes a track; what it does not write is whatever was there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Profile {
    /// Its number as a buffer: behind the call's own, the device's position and the exchange's block, before the printer.
    pub buffer: u32,
    /// Tracks of a block.
    pub tracks: u32,
    /// Marks for which a track has room.
    pub marks: u32,
}

impl Profile {
    /// Bytes before the marks.
    pub const HEADER: u64 = 40;
    /// Bytes of a mark.
    pub const MARK: u64 = 8;
    /// Of a mark's first word: the range ends.
    pub const ENDS: u32 = 1 << 31;
    /// Marks that a thread has made which makes none.
    pub const NEVER: u32 = 1 << 31;

    pub fn track_bytes(&self) -> u64 {
        Profile::HEADER + Profile::MARK * u64::from(self.marks)
    }
}

/// The memory in which the devices of one launch publish where their buffers are, and that they have begun.
///
/// Each device has such a block of its own, which lives as long as the call site. Words of 64 bits: a counter of tickets; the
/// epoch for which the tensor maps are; nothing; the addresses of all devices' blocks (in any order), and as many zeros: a row
/// of [`EntryParam::Row`] for devices of one process. From [`Exchange::messages`] on the
/// messages, by parity of the epoch and by the position of who sent them: the addresses of its buffers, each with the epoch's low 16
/// bits below. From [`Exchange::maps`] on the launch's `map_templates`, one for each device; from [`Exchange::semaphores`] on
/// semaphores, by parity of the epoch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Exchange {
    /// Its number as a buffer.
    pub buffer: u32,
    pub devices: u32,
    /// The buffers whose addresses are exchanged; this one among them where peers' semaphores are in it.
    pub exchanged: Vec<u32>,
    /// How many tensor maps there are over a buffer of each device.
    pub map_count: u32,
    /// Bytes of semaphores, a multiple of 16.
    pub semaphore_bytes: u64,
}

impl Exchange {
    /// Offset of the counter of tickets.
    pub const TICKETS: u64 = 0;
    /// Offset of the epoch for which the tensor maps are.
    pub const MAPS_EPOCH: u64 = 8;
    /// Offset of the addresses of the devices' blocks. The word before it is nothing.
    pub const BLOCKS: u64 = 24;

    /// Offset of a row of zeros.
    pub fn zero_row(&self) -> u64 {
        Exchange::BLOCKS + 8 * u64::from(self.devices)
    }
    /// Offset of the messages of even epochs.
    pub fn messages(&self) -> u64 {
        (self.zero_row() + 8 * u64::from(self.devices)).next_multiple_of(128)
    }
    /// Bytes of one message.
    pub fn message_bytes(&self) -> u64 {
        8 * self.exchanged.len() as u64
    }
    /// Bytes of the messages of one parity.
    pub fn parity_bytes(&self) -> u64 {
        (self.message_bytes() * u64::from(self.devices)).next_multiple_of(128)
    }
    /// Offset of the tensor maps, by map and device.
    pub fn maps(&self) -> u64 {
        self.messages() + 2 * self.parity_bytes()
    }
    /// Offset of one of them.
    pub fn map(&self, map: u32, device: u32) -> u64 {
        self.maps() + 128 * (u64::from(map) * u64::from(self.devices) + u64::from(device))
    }
    /// Offset of the semaphores of even epochs.
    pub fn semaphores(&self) -> u64 {
        self.map(self.map_count, 0)
    }
    /// Bytes of a block.
    pub fn bytes(&self) -> u64 {
        self.semaphores() + 2 * self.semaphore_bytes
    }
    /// What a block has before the first launch in the parts that only its device writes, by offset; peers may have written the others, which
    /// are zero at first.
    pub fn own_parts(&self, starts: &[u64], maps: &[[u8; 128]]) -> [(u64, Vec<u64>); 2] {
        let words = self.block(starts, maps);
        let part = |from: u64, to: u64| (from, words[(from / 8) as usize..(to / 8) as usize].to_vec());
        [part(0, self.messages()), part(self.maps(), self.semaphores())]
    }
    /// The words of a block before the first launch. `starts`: where all devices' blocks begin; `maps`: the tensor maps' bytes;
    pub fn block(&self, starts: &[u64], maps: &[[u8; 128]]) -> Vec<u64> {
        let mut words = vec![0; self.bytes().div_ceil(8) as usize];
        let at = (Exchange::BLOCKS / 8) as usize;
        words[at..at + starts.len()].copy_from_slice(starts);
        for (map, bytes) in (0..).zip(maps) {
            for device in 0..self.devices {
                let at = (self.map(map, device) / 8) as usize;
                for (word, bytes) in words[at..at + 16].iter_mut().zip(bytes.as_chunks::<8>().0) {
                    *word = u64::from_le_bytes(*bytes);
                }
            }
        }
        words
    }
}

/// What a kernel waited for that gave up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Awaited {
    /// A semaphore, to reach the value that is the detail.
    Semaphore,
    /// Another device, whose position is the detail, to come to the launch.
    Device,
    /// A phase of an mbarrier, whose position among its allocation's is the detail.
    Barrier,
    /// The launch's first block, to set addresses in tensor maps.
    Maps,
}

impl Awaited {
    const ALL: [Awaited; 4] = [Awaited::Semaphore, Awaited::Device, Awaited::Barrier, Awaited::Maps];
    /// The bits of a detail.
    pub const DETAIL: u32 = (1 << 28) - 1;

    /// The bits above the detail. Never zero.
    pub const fn code(self) -> u32 {
        (self as u32 + 1) << 28
    }
}

/// What a kernel that waited for too long leaves for the host in [`LaunchSpec::gives_up`].
///
/// A word of 64 bits: the op's number above, what it waited for below; one of where that was: the warp above, the block, x fastest, below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GaveUp {
    pub op: u32,
    pub awaited: Awaited,
    pub detail: u32,
    pub block: u32,
    pub warp: u32,
}

impl GaveUp {
    pub const BYTES: u64 = 16;

    /// None: no warp gave up.
    pub fn of([word, place]: [u64; 2]) -> Option<GaveUp> {
        let low = word as u32;
        let awaited = Awaited::ALL
            .into_iter()
            .find(|awaited| awaited.code() == low & !Awaited::DETAIL)?;
        Some(GaveUp {
            op: (word >> 32) as u32,
            awaited,
            detail: low & Awaited::DETAIL,
            block: place as u32,
            warp: (place >> 32) as u32,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Scratch {
    pub bytes: u64,
}

/// One entry parameter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EntryParam {
    /// The address of buffer `buffer`, 8 bytes.
    Pointer { buffer: u32 },
    /// A tensor map over a buffer: 128 bytes by value, 64-byte aligned.
    TensorMap(TensorMapSpec),
    /// The address of a row of 64-bit words, one for each device in the order of the exchange block's list: what that device adds to the address
    /// of exchanged buffer number `exchanged` ([`Exchange::exchanged`]). Not zero where another process has mapped the buffer elsewhere.
    Row { exchanged: u32 },
}

/// `cuTensorMapEncodeTiled`'s arguments. Dimension 0 is the minor one; element strides are 1, no interleave.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TensorMapSpec {
    pub buffer: u32,
    /// Added to the buffer's address; the sum is 16-byte aligned.
    pub byte_offset: u64,
    pub element: TensorMapElement,
    /// Elements along each dimension, 1 to 5 of them.
    pub dims: ArrayVec<u64, 5>,
    /// Bytes between neighbours along dimensions 1…; multiples of 16.
    pub strides: ArrayVec<u64, 4>,
    /// Elements of the box, at most 256 a dimension.
    pub box_dims: ArrayVec<u32, 5>,
    pub swizzle: TensorMapSwizzle,
}

/// The element type as the tensor map counts it: sub-byte types travel packed as bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum TensorMapElement {
    U8,
    U16,
    U32,
    I32,
    U64,
    I64,
    F16,
    F32,
    F64,
    BF16,
}

impl TensorMapElement {
    pub const fn bytes(self) -> u32 {
        match self {
            TensorMapElement::U8 => 1,
            TensorMapElement::U16 | TensorMapElement::F16 | TensorMapElement::BF16 => 2,
            TensorMapElement::U32 | TensorMapElement::I32 | TensorMapElement::F32 => 4,
            TensorMapElement::U64 | TensorMapElement::I64 | TensorMapElement::F64 => 8,
        }
    }
}

/// Swizzle of the box in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum TensorMapSwizzle {
    None,
    B32,
    B64,
    B128,
}

impl TensorMapSwizzle {
    /// The swizzle's span in bytes: the inner box is at most that wide. `None`: 16.
    pub const fn bytes(self) -> u32 {
        match self {
            TensorMapSwizzle::None => 16,
            TensorMapSwizzle::B32 => 32,
            TensorMapSwizzle::B64 => 64,
            TensorMapSwizzle::B128 => 128,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer writes messages and signals as soon as it knows a block: what a device then writes itself must leave them alone.
    #[test]
    fn own_parts_of_an_exchange_block_and_what_peers_write_are_apart() {
        for (devices, exchanged, map_count, semaphore_bytes) in [(2, 1, 0, 16), (3, 2, 1, 0), (40, 5, 3, 1024)] {
            let exchange = Exchange {
                buffer: 9,
                devices,
                exchanged: (0..exchanged).collect(),
                map_count,
                semaphore_bytes,
            };
            let starts = (0..u64::from(devices)).map(|i| 0x1000 * (i + 1)).collect::<Vec<_>>();
            let maps = vec![[7; 128]; map_count as usize];
            let whole = exchange.block(&starts, &maps);
            let mut block = vec![0; whole.len()];
            let by_peers = 0xdead;
            let both = exchange.messages()..exchange.messages() + 2 * exchange.parity_bytes();
            let semaphores = exchange.semaphores()..exchange.bytes();
            for at in both.step_by(8).chain(semaphores.clone().step_by(8)) {
                block[(at / 8) as usize] = by_peers;
            }
            for (at, words) in exchange.own_parts(&starts, &maps) {
                let at = (at / 8) as usize;
                block[at..at + words.len()].copy_from_slice(&words);
            }
            for (i, (is, was)) in block.iter().zip(&whole).enumerate() {
                let at = 8 * i as u64;
                let of_peers = (exchange.messages()..exchange.maps()).contains(&at) || semaphores.contains(&at);
                assert_eq!(*is, if of_peers { by_peers } else { *was }, "byte {at} of {exchange:?}");
            }
            assert_eq!(exchange.zero_row() % 8, 0);
            let row = (exchange.zero_row() / 8) as usize;
            assert!(whole[row..row + devices as usize].iter().all(|word| *word == 0));
            assert!(exchange.zero_row() + 8 * u64::from(devices) <= exchange.messages());
        }
    }
}
