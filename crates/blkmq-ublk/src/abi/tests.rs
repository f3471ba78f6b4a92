use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::*;

const HEADER: &str = "/usr/include/linux/ublk_cmd.h";

/// Red if a field is written elsewhere than where it is read, or if two fields overlap.
#[test]
fn structures_come_back_as_they_were_written() {
    // Each byte has another value. What no field has is not written, and what a field has is.
    let bytes: [u8; 64] = std::array::from_fn(|at| at as u8 + 1);
    let info = DeviceInfo::from_bytes(&bytes);
    let parameters = Parameters::from_bytes(&bytes);
    assert_eq!(DeviceInfo::from_bytes(&info.to_bytes()), info);
    assert_eq!(Parameters::from_bytes(&parameters.to_bytes()), parameters);
    let nr_written = [info.to_bytes(), parameters.to_bytes()].map(|found| {
        let expected = found.iter().zip(&bytes).skip(4);
        expected.filter(|(byte, written)| byte == written).count()
    });
    assert_eq!(nr_written, [2 + 4 + 4 + 4 + 8 + 8, 4 + 4 + 4 + 8 + 8 + 4 + 4 + 4 + 2]);
    for number in (0..6).map(u16::to_ne_bytes) {
        assert_eq!(State::from_ne_bytes(number).to_ne_bytes(), number);
    }
}

/// Red if a number of the interface is another one than the kernel's, which were written down by hand.
#[test]
fn commands_have_the_numbers_that_the_kernel_knows() {
    let found = [control::ADD_DEV, control::GET_PARAMS, control::GET_DEV_INFO2, control::GET_FEATURES];
    assert_eq!(found.map(|ControlOp(_, number)| number), [0xc020_7504, 0x8020_7509, 0x8020_7512, 0x8020_7513]);
    assert_eq!([io::FETCH_REQ, io::COMMIT_AND_FETCH_REQ], [0xc010_7520, 0xc010_7521]);
}

/// Red if a size or an offset differs from what the C compiler makes of the system's header. Where there is no header
/// or no compiler, the numbers above are all there is.
#[test]
fn sizes_and_offsets_are_those_of_the_header() {
    let expected: &[(&str, usize)] = &[
        ("sizeof(struct ublksrv_ctrl_cmd)", CONTROL_SIZE),
        ("offsetof(struct ublksrv_ctrl_cmd, dev_id)", 0),
        ("offsetof(struct ublksrv_ctrl_cmd, queue_id)", 4),
        ("offsetof(struct ublksrv_ctrl_cmd, len)", 6),
        ("offsetof(struct ublksrv_ctrl_cmd, addr)", 8),
        ("offsetof(struct ublksrv_ctrl_cmd, data)", 16),
        ("sizeof(struct ublksrv_ctrl_dev_info)", INFO_SIZE),
        ("offsetof(struct ublksrv_ctrl_dev_info, queue_depth)", 2),
        ("offsetof(struct ublksrv_ctrl_dev_info, state)", 4),
        ("offsetof(struct ublksrv_ctrl_dev_info, max_io_buf_bytes)", 8),
        ("offsetof(struct ublksrv_ctrl_dev_info, dev_id)", 12),
        ("offsetof(struct ublksrv_ctrl_dev_info, ublksrv_pid)", 16),
        ("offsetof(struct ublksrv_ctrl_dev_info, flags)", 24),
        ("offsetof(struct ublksrv_ctrl_dev_info, ublksrv_flags)", 32),
        ("offsetof(struct ublk_params, types)", 4),
        ("offsetof(struct ublk_params, basic.attrs)", 8),
        ("offsetof(struct ublk_params, basic.logical_bs_shift)", 12),
        ("offsetof(struct ublk_params, basic.physical_bs_shift)", 13),
        ("offsetof(struct ublk_params, basic.io_opt_shift)", 14),
        ("offsetof(struct ublk_params, basic.io_min_shift)", 15),
        ("offsetof(struct ublk_params, basic.max_sectors)", 16),
        ("offsetof(struct ublk_params, basic.chunk_sectors)", 20),
        ("offsetof(struct ublk_params, basic.dev_sectors)", 24),
        ("offsetof(struct ublk_params, discard.discard_granularity)", 44),
        ("offsetof(struct ublk_params, discard.max_discard_sectors)", 48),
        ("offsetof(struct ublk_params, discard.max_write_zeroes_sectors)", 52),
        ("offsetof(struct ublk_params, discard.max_discard_segments)", 56),
        ("sizeof(struct ublksrv_io_desc)", DESCRIPTOR_SIZE),
        ("offsetof(struct ublksrv_io_desc, nr_sectors)", 4),
        ("offsetof(struct ublksrv_io_desc, start_sector)", 8),
        ("sizeof(struct ublksrv_io_cmd)", IO_SIZE),
        ("offsetof(struct ublksrv_io_cmd, q_id)", 0),
        ("offsetof(struct ublksrv_io_cmd, tag)", 2),
        ("offsetof(struct ublksrv_io_cmd, result)", 4),
        ("offsetof(struct ublksrv_io_cmd, addr)", 8),
        ("UBLK_IO_F_META", flag::META as usize),
        ("UBLK_IO_F_FUA", flag::FUA as usize),
        ("UBLK_IO_F_NOUNMAP", flag::NOUNMAP as usize),
        ("UBLK_IO_F_SWAP", flag::SWAP as usize),
        ("UBLK_IO_OP_WRITE_ZEROES", op::WRITE_ZEROES as usize),
        ("UBLK_ATTR_VOLATILE_CACHE", attribute::VOLATILE_CACHE as usize),
        ("UBLK_F_USER_RECOVERY_REISSUE", feature::USER_RECOVERY_REISSUE as usize),
        ("UBLK_MAX_QUEUE_DEPTH", MAX_QUEUE_DEPTH as usize),
    ];
    if !Path::new(HEADER).exists() || Command::new("cc").arg("--version").output().is_err() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut source = "#include <stddef.h>\n#include <linux/ublk_cmd.h>\n".to_owned();
    for (what, value) in expected {
        writeln!(source, "_Static_assert({what} == {value}, \"{what}\");").unwrap();
    }
    let file = folder.path().join("layout.c");
    fs::write(&file, source).unwrap();
    let compiled = Command::new("cc").args(["-std=gnu11", "-fsyntax-only"]).arg(&file).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}
