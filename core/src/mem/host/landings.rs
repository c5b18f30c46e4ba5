//! The table of the landing pads: which instructions may fault, and where they continue then.

use super::Fault;

/// One line of the table: offsets from each field's own address, so that it needs no relocation at
/// load time.
#[repr(C)]
struct PadRange {
    start: i32,
    end: i32,
    landing: i32,
}

/// Adds a line to the table: faults in [`$start`, `$end`) continue at `$landing`.
///
/// Section flag R (retain): a linker that drops unused sections must keep this one, to which only
/// the names of its bounds refer.
macro_rules! guard {
    ($start:literal, $end:literal, $landing:literal) => {
        concat! {
            ".pushsection gdrc_fixup,\"aR\",@progbits\n",
            ".balign 4\n",
            ".long ", $start, " - .\n",
            ".long ", $end, " - .\n",
            ".long ", $landing, " - .\n",
            ".popsection"
        }
    };
}

// An empty line, so that the section and its bounds exist in every program. The bounds are ours
// alone: hidden, so that two libraries with such a table in one process do not share it.
core::arch::global_asm!(
    ".hidden __start_gdrc_fixup",
    ".hidden __stop_gdrc_fixup",
    ".pushsection gdrc_fixup,\"aR\",@progbits",
    ".balign 4",
    ".long 0, 0, 0",
    ".popsection",
);

extern "C" {
    #[link_name = "__start_gdrc_fixup"]
    static TABLE_START: PadRange;
    #[link_name = "__stop_gdrc_fixup"]
    static TABLE_END: PadRange;
}

pub(super) fn fixup(pc: usize) -> Option<usize> {
    let mut entry = core::ptr::addr_of!(TABLE_START);
    let end = core::ptr::addr_of!(TABLE_END);
    while entry < end {
        let at = entry as usize;
        // SAFETY: the linker sets both names to the bounds of the section, which holds nothing but
        // whole entries.
        let e = unsafe { &*entry };
        let field =
            |offset: usize, value: i32| at.wrapping_add(offset).wrapping_add_signed(value as isize);
        let (start, stop) = (field(0, e.start), field(4, e.end));
        if (start..stop).contains(&pc) {
            return Some(field(8, e.landing));
        }
        entry = entry.wrapping_add(1);
    }
    None
}

/// The result of a copy, which has set `fault` to 0 if it came to its end.
#[inline]
pub(super) fn result<T>(fault: u32, value: T) -> Result<T, Fault> {
    if fault == 0 {
        Ok(value)
    } else {
        Err(Fault)
    }
}
