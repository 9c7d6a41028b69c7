"""Makes rocjitsu faster without changing what it computes; mend.py calls it.

Most of its time went into finding pages (two locks and two hash tables for each byte that a store writes, and for each
word that is fetched), decoding each instruction again for each wave, and emptying caches of 32,768 lines after each
kernel. A second core was busy with waiting.
"""

VM = "lib/rocjitsu/src/rocjitsu/vm/amdgpu/"
KFD = "lib/rocjitsu/src/rocjitsu/kmd/linux/"
FUNCTIONS = []


def group(function):
    FUNCTIONS.append(function)
    return function


def groups():
    """For each group of edits that depend on each other, a list of a path, an old text and a new text."""
    for function in FUNCTIONS:
        edits = []
        function(lambda path, old, new: edits.append((path, old, new)))
        yield edits


@group
def pages(replace):
    """A thread remembers pages until a page table changes."""
    changed = "    page_changes.fetch_add(1, std::memory_order_release);\n"
    replace(
        KFD + "kfd_process.h",
        "  using PageTable = std::unordered_map<uint64_t, PageTableEntry>;\n",
        """  using PageTable = std::unordered_map<uint64_t, PageTableEntry>;

  /// Counts the changes of all page tables. Changed while the table is locked.
  static inline std::atomic<uint64_t> page_changes{1};
""",
    )
    for last in (
        "      page_table_[(gpu_va + off) >> kPageShift] = {base + off, mtype};\n",
        "      page_table_.erase((gpu_va + off) >> kPageShift);\n",
    ):
        replace(KFD + "kfd_process.h", last, last + changed)
    last = "            pt_it->second.host_ptr = new_base + off;\n        }\n"
    replace(KFD + "simulated_kfd.cpp", last, last + "        KfdProcess::" + changed.strip() + "\n")
    last = "          pt_it->second.mtype = amdgpu::Mtype::CC;\n      }\n"
    replace(KFD + "simulated_kfd.cpp", last, last + "      KfdProcess::" + changed.strip() + "\n")

    memory = VM + "gpu_memory.h"
    for last in ("    vmid_table_[pid] = {pt, mu};\n", "    vmid_table_.erase(pid);\n"):
        replace(memory, last, last + "    KfdProcess::" + changed.strip() + "\n")
    lookup = """    {
      std::shared_lock lk(vmid_mutex_);
      auto it = vmid_table_.find(vmid);
      if (it != vmid_table_.end()) {
        auto &entry = it->second;
        std::shared_lock pt_lk(*entry.mutex);
        auto pt_it = entry.page_table->find(addr >> PAGE_SHIFT);
        if (pt_it != entry.page_table->end())
          return pt_it->second.%s;
      }
    }
"""
    known = """    if (const KnownPage &page = known_page(addr, vmid); page.is_mapped)
      return page.entry.%s;
"""
    for field in ("mtype", "host_ptr"):
        replace(memory, lookup % field, known % field)
    replace(
        memory,
        "  uint8_t *translate(uint64_t addr, uint32_t vmid) const {\n",
        """  /// A page as the thread found it last.
  struct KnownPage {
    const GpuMemory *memory = nullptr;
    uint64_t number = 0;
    uint64_t changes = 0;
    uint32_t vmid = 0;
    bool is_mapped = false;
    KfdProcess::PageTableEntry entry;
  };

  const KnownPage &known_page(uint64_t addr, uint32_t vmid) const {
    static thread_local KnownPage pages[4096];
    const uint64_t number = addr >> PAGE_SHIFT;
    const uint64_t changes = KfdProcess::page_changes.load(std::memory_order_acquire);
    KnownPage &page = pages[number % 4096];
    if (page.memory == this && page.number == number && page.changes == changes &&
        page.vmid == vmid)
      return page;
    page = {this, number, changes, vmid, false, {}};
    std::shared_lock lk(vmid_mutex_);
    auto it = vmid_table_.find(vmid);
    if (it != vmid_table_.end()) {
      std::shared_lock pt_lk(*it->second.mutex);
      auto found = it->second.page_table->find(number);
      if (found != it->second.page_table->end()) {
        page.is_mapped = true;
        page.entry = found->second;
      }
    }
    return page;
  }

  uint8_t *translate(uint64_t addr, uint32_t vmid) const {
""",
    )


@group
def bytes_at_once(replace):
    """Copies a page's part of an access at once instead of byte by byte."""
    memory = VM + "gpu_memory.h"
    replace(
        memory,
        "  uint8_t read8(uint64_t addr, uint32_t vmid = 0) const {\n",
        """  void read_bytes(uint64_t addr, uint8_t *dst, uint32_t size, uint32_t vmid = 0) const {
    for (uint32_t done = 0; done < size;) {
      const uint64_t at = addr + done;
      const uint32_t room = PAGE_SIZE - (at & PAGE_MASK);
      const uint32_t chunk = size - done < room ? size - done : room;
      if (const uint8_t *page = translate(at, vmid))
        std::memcpy(dst + done, page + (at & PAGE_MASK), chunk);
      else
        for (uint32_t i = 0; i < chunk; ++i)
          dst[done + i] = read8(at + i, vmid);
      done += chunk;
    }
  }

  void write_bytes(uint64_t addr, const uint8_t *src, uint32_t size, uint32_t vmid = 0) {
    for (uint32_t done = 0; done < size;) {
      const uint64_t at = addr + done;
      const uint32_t room = PAGE_SIZE - (at & PAGE_MASK);
      const uint32_t chunk = size - done < room ? size - done : room;
      if (uint8_t *page = translate(at, vmid))
        std::memcpy(page + (at & PAGE_MASK), src + done, chunk);
      else
        for (uint32_t i = 0; i < chunk; ++i)
          write8(at + i, src[done + i], vmid);
      done += chunk;
    }
  }

  /// @brief The four words at an address; no instruction is longer.
  template <typename Word>
  void fetch_words(uint64_t addr, Word (&words)[4], uint32_t vmid = 0) const {
    const uint8_t *page = translate(addr, vmid);
    if (page && (addr & PAGE_MASK) + sizeof(words) <= PAGE_SIZE) {
      std::memcpy(words, page + (addr & PAGE_MASK), sizeof(words));
      return;
    }
    for (int i = 0; i < 4; ++i)
      words[i] = fetch32(addr + i * 4, vmid);
  }

  uint8_t read8(uint64_t addr, uint32_t vmid = 0) const {
""",
    )
    replace(
        VM + "l2_cache.cpp",
        "      for (uint32_t i = 0; i < size; ++i)\n        backing_memory_->write8(addr + i, data[i], vmid);\n",
        "      backing_memory_->write_bytes(addr, data, size, vmid);\n",
    )
    replace(
        VM + "l2_cache.cpp",
        "      for (uint32_t i = 0; i < size; ++i)\n        data[i] = backing_memory_->read8(addr + i, vmid);\n",
        "      backing_memory_->read_bytes(addr, data, size, vmid);\n",
    )
    replace(
        VM + "hbm_controller.h",
        "    for (uint32_t i = 0; i < size; ++i)\n      dst[i] = memory_->read8(addr + i, vmid);\n",
        "    memory_->read_bytes(addr, dst, size, vmid);\n",
    )
    replace(
        VM + "hbm_controller.h",
        "    for (uint32_t i = 0; i < size; ++i)\n      memory_->write8(addr + i, src[i], vmid);\n",
        "    memory_->write_bytes(addr, src, size, vmid);\n",
    )
    replace(
        VM + "compute_unit.cpp",
        "  for (int i = 0; i < 4; ++i)\n    words[i] = memory_->fetch32(active->pc + i * 4, vmid);\n",
        "  memory_->fetch_words(active->pc, words, vmid);\n",
    )


@group
def lanes_at_once(replace):
    """Lanes that follow each other in memory are one access. It is split at cache lines, as each lane's was."""
    for access, bytes_of in (
        (
            "read_bytes(ea, dst + lane * stride + e * elem_size, elem_size, mtype, non_temporal,\n"
            "                 request_l1_bypass, vmid);\n",
            "read_bytes(base, dst + lane * stride, (end - lane) * stride, mtype, non_temporal,\n"
            "               request_l1_bypass, vmid);\n",
        ),
        (
            "write_bytes(ea, src + lane * stride + e * elem_size, elem_size, mtype, non_temporal, vmid);\n",
            "write_bytes(base, src + lane * stride, (end - lane) * stride, mtype, non_temporal, vmid);\n",
        ),
    ):
        replace(
            VM + "l1_vector_cache.cpp",
            """    remaining &= remaining - 1;
    uint64_t base = addrs[lane];
    for (uint32_t e = 0; e < num_elems; ++e) {
      uint64_t ea = base + e * elem_size;
      """
            + access
            + "    }\n",
            """    remaining &= remaining - 1;
    uint64_t base = addrs[lane];
    uint32_t end = lane + 1;
    for (; remaining >> (end % 64) & 1 && addrs[end] == addrs[end - 1] + stride; ++end)
      remaining &= remaining - 1;
    """
            + bytes_of,
        )


@group
def instructions(replace):
    """A compute unit keeps decoded instructions. Those that access memory, or read a source through DPP or SDWA, keep
    state of their execution, and are decoded each time."""
    replace(
        VM + "compute_unit.h",
        "  uint64_t step_count_ = 0;\n",
        """  uint64_t step_count_ = 0;

  struct DecodedInstruction {
    rj_code_binary_inst_t words[4];
    Instruction *inst = nullptr;
  };
  /// Indexed by address. An entry is used only if all four words match, whichever process they are of.
  std::vector<DecodedInstruction> decoded_ = std::vector<DecodedInstruction>(4096);
""",
    )
    unit = VM + "compute_unit.cpp"
    replace(
        unit,
        "  Instruction *inst = nullptr;\n  try {\n    inst = decoder_->decode(words);\n",
        """  auto &decoded = decoded_[(active->pc >> 2) % decoded_.size()];
  const bool is_known = decoded.inst && std::equal(words, words + 4, decoded.words);
  Instruction *inst = is_known ? decoded.inst : nullptr;
  try {
    if (!is_known)
      inst = decoder_->decode(words);
""",
    )
    replace(
        unit,
        """    if (mn.find("s_setpc") != std::string_view::npos ||
        mn.find("s_swappc") != std::string_view::npos) {
""",
        '    if (mn.starts_with("s_setpc") || mn.starts_with("s_swappc")) {\n',
    )
    replace(
        unit,
        "        delete inst;\n        return;\n",
        "        if (!is_known)\n          delete inst;\n        return;\n",
    )
    replace(
        unit,
        "    route_memory_inst(inst, *active);\n  } else\n    delete inst;\n",
        """    route_memory_inst(inst, *active);
  } else if (!is_known) {
    auto is_modified = [](uint32_t word) {
      const uint32_t source = word & 0x1ff; // DPP8, DPP8 with FI, SDWA, DPP16
      return source == 233 || source == 234 || source == 249 || source == 250;
    };
    if (inst->data() || is_modified(words[0]) || is_modified(words[1])) {
      delete inst;
    } else {
      delete decoded.inst;
      std::copy_n(words, 4, decoded.words);
      decoded.inst = inst;
    }
  }
""",
    )


@group
def registers(replace):
    """A new wave's registers are set to 0: those that its kernel has, instead of all 512."""
    replace(
        VM + "compute_unit.cpp",
        """  std::memset(vgpr_data(static_cast<uint32_t>(vgpr_base)), 0,
              vgpr_allocation_block_size() * wf_size_ * sizeof(uint32_t));
""",
        """  const uint32_t block = vgpr_allocation_block_size();
  auto clear = [&](uint32_t first, uint32_t limit) {
    std::memset(vgpr_data(static_cast<uint32_t>(vgpr_base) + first), 0,
                std::min(vgprs, limit) * wf_size_ * sizeof(uint32_t));
  };
  clear(0, block);
  if (block > ACC_VGPR_OFFSET)
    clear(ACC_VGPR_OFFSET, block - ACC_VGPR_OFFSET);
""",
    )


@group
def plugins(replace):
    """Without a plugin, nobody asks who reads which register, nor for the path of a compute unit."""
    unit = VM + "compute_unit.h"
    replace(
        unit,
        "    if (auto *wf = sgpr_to_wave_[reg_idx]) {\n",
        "    if (auto *wf = plugin_group_->empty() ? nullptr : sgpr_to_wave_[reg_idx]) {\n",
    )
    replace(
        unit,
        "    if (auto *wf = vgpr_to_wave_[reg_idx]) {\n",
        "    if (auto *wf = this->plugin_group_->empty() ? nullptr : vgpr_to_wave_[reg_idx]) {\n",
    )
    replace(unit, "    if (wf)\n      plugin_group_->", "    if (wf && !plugin_group_->empty())\n      plugin_group_->")
    replace(
        VM + "memory_pipeline.cpp",
        "    d.cu_path = wf.cu().full_path();\n",
        "    if constexpr (util::Logger::enabled())\n      d.cu_path = wf.cu().full_path();\n",
    )


@group
def caches(replace):
    """To empty a cache, only the sets that got a line are visited."""
    cache = "lib/simdojo/include/simdojo/components/cache.h"
    replace(
        cache,
        "    // Check for an invalid way first.\n",
        "    used_[set] = 1;\n    // Check for an invalid way first.\n",
    )
    replace(
        cache,
        """    for (auto &t : tags_) {
      t.valid = false;
      t.dirty = false;
      t.coherence = CoherenceState::INVALID;
    }
""",
        """    for (uint32_t s = 0; s < NumSets; ++s) {
      if (!used_[s])
        continue;
      for (uint32_t w = 0; w < Associativity; ++w) {
        auto &t = tag_at(s, w);
        t.valid = false;
        t.dirty = false;
        t.coherence = CoherenceState::INVALID;
      }
    }
    used_.assign(used_.size(), 0);
""",
    )
    replace(
        cache,
        "    for (uint32_t s = 0; s < NumSets; ++s)\n      for (uint32_t w = 0; w < Associativity; ++w) {\n"
        "        auto &t",
        "    for (uint32_t s = 0; s < NumSets; ++s)\n      for (uint32_t w = 0; used_[s] && w < Associativity; ++w) {\n"
        "        auto &t",
    )
    replace(
        cache,
        "  CacheTag &tag_at(uint32_t set, uint32_t way) {\n",
        """  /// Whether a set got a line since the cache was emptied. A byte each, because threads may use
  /// different sets at a time.
  std::vector<uint8_t> used_ = std::vector<uint8_t>(NumSets);

  CacheTag &tag_at(uint32_t set, uint32_t way) {
""",
    )


@group
def waiting(replace):
    """HIP waits for a signal by spinning on a core. Sleeping between checks leaves that core to other tests."""
    replace(
        KFD + "interposer.cpp",
        """extern "C" {

static std::string redirect_sysfs_path(const char *path);
""",
        """extern "C" {

__attribute__((visibility("default"))) hsa_signal_value_t HSA_API
hsa_signal_wait_scacquire(hsa_signal_t signal, hsa_signal_condition_t condition,
                          hsa_signal_value_t value, uint64_t timeout, hsa_wait_state_t state) {
  static void *const library = dlopen("libhsa-runtime64.so.1", RTLD_NOLOAD | RTLD_LAZY);
  static const auto load = reinterpret_cast<decltype(&hsa_signal_load_scacquire)>(
      dlsym(library, "hsa_signal_load_scacquire"));
  static const auto wait = reinterpret_cast<decltype(&hsa_signal_wait_scacquire)>(
      dlsym(library, "hsa_signal_wait_scacquire"));
  if (timeout != UINT64_MAX)
    return wait(signal, condition, value, timeout, state);
  for (;;) {
    const hsa_signal_value_t now = load(signal);
    const bool is_met = condition == HSA_SIGNAL_CONDITION_EQ   ? now == value
                        : condition == HSA_SIGNAL_CONDITION_NE ? now != value
                        : condition == HSA_SIGNAL_CONDITION_LT ? now < value
                                                               : now >= value;
    if (is_met)
      return now;
    usleep(20);
  }
}

static std::string redirect_sysfs_path(const char *path);
""",
    )
