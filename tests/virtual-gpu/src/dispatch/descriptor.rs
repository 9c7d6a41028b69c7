//! Kernel descriptors, as "User Guide for AMDGPU Backend" of LLVM defines them under "Kernel Descriptor".

/// The 64 bytes that describe a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelDescriptor {
    /// LDS per workgroup in bytes, without what the launch adds.
    pub group_size: u32,
    /// Private memory per work-item, in bytes.
    pub private_size: u32,
    /// Arguments, in bytes.
    pub kernarg_size: u32,
    /// The offset of the first instruction from the descriptor's own address.
    pub entry: i64,
    /// `COMPUTE_PGM_RSRC1`.
    pub rsrc1: u32,
    /// `COMPUTE_PGM_RSRC2`.
    pub rsrc2: u32,
    /// `KERNEL_CODE_PROPERTIES`.
    pub properties: u16,
}

impl KernelDescriptor {
    /// The bytes of a descriptor.
    pub const SIZE: usize = 64;

    /// Reads a descriptor.
    pub fn parse(bytes: &[u8; Self::SIZE]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self {
            group_size: word(0),
            private_size: word(4),
            kernarg_size: word(8),
            entry: (u64::from(word(16)) | u64::from(word(20)) << 32) as i64,
            rsrc1: word(48),
            rsrc2: word(52),
            properties: u16::from_le_bytes([bytes[56], bytes[57]]),
        }
    }

    fn property(&self, bit: u32) -> bool {
        self.properties >> bit & 1 != 0
    }

    /// Whether SGPRs begin with the private segment's buffer resource.
    pub fn private_segment_buffer(&self) -> bool {
        self.property(0)
    }

    /// Whether SGPRs hold the dispatch packet's address.
    pub fn dispatch_pointer(&self) -> bool {
        self.property(1)
    }

    /// Whether SGPRs hold the queue's address.
    pub fn queue_pointer(&self) -> bool {
        self.property(2)
    }

    /// Whether SGPRs hold the arguments' address.
    pub fn kernarg_pointer(&self) -> bool {
        self.property(3)
    }

    /// Whether SGPRs hold the dispatch's number.
    pub fn dispatch_id(&self) -> bool {
        self.property(4)
    }

    /// Whether SGPRs hold the location of private memory.
    pub fn flat_scratch_init(&self) -> bool {
        self.property(5)
    }

    /// Whether an SGPR holds the bytes of private memory.
    pub fn private_segment_size(&self) -> bool {
        self.property(6)
    }

    /// Whether waves have 32 lanes; 64 if not.
    pub fn wave32(&self) -> bool {
        self.property(10)
    }

    /// Whether the kernel needs more private memory than the descriptor says, for calls it can't foresee.
    pub fn dynamic_stack(&self) -> bool {
        self.property(11)
    }

    /// The number of user SGPRs; system SGPRs follow.
    pub fn user_sgprs(&self) -> usize {
        (self.rsrc2 >> 1 & 31) as usize
    }

    /// Which of the workgroup's x, y and z follow the user SGPRs.
    pub fn workgroup_ids(&self) -> [bool; 3] {
        [7, 8, 9].map(|bit| self.rsrc2 >> bit & 1 != 0)
    }

    /// Whether the workgroup information follows those.
    pub fn workgroup_info(&self) -> bool {
        self.rsrc2 >> 10 & 1 != 0
    }

    /// Whether the wave's offset in scratch memory follows those.
    pub fn private_segment_wave_offset(&self) -> bool {
        self.rsrc2 & 1 != 0
    }

    /// How many of v0, v1 and v2 hold the work-item's x, y and z.
    pub fn work_item_ids(&self) -> usize {
        (self.rsrc2 >> 11 & 3).min(2) as usize + 1
    }

    /// The VGPRs of a lane: granules of 8 in waves of 32.
    pub fn vgprs(&self) -> usize {
        ((self.rsrc1 & 63) as usize + 1) * 8
    }

    /// The MODE register: rounding in bits 0 to 3, denormals in 4 to 7, DX10_CLAMP in 8, IEEE in 9.
    pub fn mode(&self) -> u32 {
        self.rsrc1 >> 12 & 0xff | (self.rsrc1 >> 21 & 1) << 8 | (self.rsrc1 >> 23 & 1) << 9
    }
}
