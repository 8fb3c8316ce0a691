//! Machines on which no device can be opened: the message names the object, its value and the
//! remedy.

use std::path::Path;
use std::process::Command;

use efa_testing::hw::kernel;
use efa_testing::workspace::{built, efa_emu};

/// The message of an echo server that ends immediately.
fn message(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    text
}

fn echo() -> Command {
    Command::new(built("examples/echo"))
}

/// The functions of libibverbs and libefa that are called by name.
const VERBS: &str = "ibv_get_device_list ibv_free_device_list ibv_get_device_name ibv_open_device ibv_close_device \
    ibv_query_device ibv_query_port ibv_query_gid ibv_alloc_pd ibv_dealloc_pd ibv_reg_mr ibv_reg_dmabuf_mr ibv_dereg_mr \
    ibv_create_ah ibv_destroy_ah ibv_destroy_cq ibv_create_comp_channel ibv_destroy_comp_channel ibv_get_cq_event \
    ibv_ack_cq_events ibv_destroy_qp ibv_destroy_srq ibv_modify_qp \
    ibv_qp_to_qp_ex";
const EFADV: &str =
    "efadv_query_device efadv_query_ah efadv_create_qp_ex efadv_create_cq efadv_cq_from_ibv_cq_ex";

/// Stub libraries without a device in `directory`, which lack the function `missing`.
fn stubs(directory: &Path, missing: &str) {
    for (library, functions) in [("libibverbs", VERBS), ("libefa", EFADV)] {
        let mut source = String::from("static void *list[1];\n");
        for function in functions.split_whitespace() {
            source += &match function {
                function if function == missing => String::new(),
                "ibv_get_device_list" => {
                    "void *ibv_get_device_list(int *count) { *count = 0; return list; }\n"
                        .to_owned()
                }
                function => format!("void {function}(void) {{}}\n"),
            };
        }
        let file = directory.join(format!("{library}.c"));
        std::fs::write(&file, source).unwrap();
        let soname = format!("-Wl,-soname,{library}.so.1");
        kernel::compile(
            &directory.join(format!("{library}.so.1")),
            &file,
            &[&soname],
        );
    }
}

#[test]
fn no_device() {
    let directory = tempfile::tempdir().unwrap();
    stubs(directory.path(), "");
    let text = message(echo().env("LD_LIBRARY_PATH", directory.path()));
    assert_eq!(
        text,
        "echo: no EFA device among 0 RDMA device(s); without EFA hardware, run the program under `efa-emu run --`\n"
    );
}

#[test]
fn a_library_without_a_function() {
    for (library, missing) in [
        ("libibverbs.so.1", "ibv_reg_mr"),
        ("libefa.so.1", "efadv_create_cq"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        stubs(directory.path(), missing);
        let text = message(echo().env("LD_LIBRARY_PATH", directory.path()));
        let path = directory.path().join(library);
        let expected = format!(
            "echo: {library} has no {missing}: {}: undefined symbol: {missing}; install rdma-core 43 or later",
            path.display()
        );
        assert!(text.starts_with(&expected), "{text}\n{expected}");
        assert!(text.contains("LD_LIBRARY_PATH"), "{text}");
    }
}

#[test]
fn a_file_that_is_no_library_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("libibverbs.so.1");
    std::fs::write(&file, "no library").unwrap();
    let text = message(echo().env("LD_LIBRARY_PATH", directory.path()));
    let expected = format!(
        "echo: cannot load libibverbs.so.1: {}: file too short; install",
        file.display()
    );
    assert!(text.starts_with(&expected), "{text}\n{expected}");
    assert!(text.contains("ibverbs-providers"), "{text}");
}

/// The echo server on an emulated host with a stricter kernel.
fn under_a_strict_kernel(name: &str, kernel: &str, program: &[&str]) -> String {
    let (_directory, library) = kernel::library();
    let fabric = format!("unfit-{}-{name}", std::process::id());
    let mut command = efa_emu(&["run", "--fabric", &fabric, "--"]);
    command.args(program).arg(built("examples/echo"));
    message(command.env("LD_PRELOAD", library).env(kernel, "1"))
}

#[test]
fn no_permission() {
    let text = under_a_strict_kernel("permission", "KERNEL_DENIES", &["env"]);
    let expected = "echo: ibv_open_device failed on ";
    assert!(text.starts_with(expected), "{text}");
    for part in [
        "Permission denied (os error 13)",
        "this user needs read and write access to /dev/infiniband/uverbs",
        "docker run --device /dev/infiniband/uverbs",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn too_little_locked_memory() {
    // In KiB. The default configuration has 2048 packet buffers.
    let limited = ["sh", "-c", "ulimit -l 64; exec \"$0\""];
    let text = under_a_strict_kernel("memlock", "KERNEL_LIMITS", &limited);
    assert!(text.starts_with("echo: ibv_reg_mr failed on "), "{text}");
    for part in [
        "Cannot allocate memory (os error 12)",
        "18350080 bytes of packet buffers",
        "the limit of locked memory is 65536 bytes: raise it (`ulimit -l unlimited`",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    // With enough locked memory the server starts: see `echo.rs`.
}
