//! Programs with an rdma-core of their own: its libibverbs is never used, its libraries for the
//! devices of other vendors load, and the program gets the emulated device by every name of the
//! library.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use efa_testing::programs::exported::{PRIVATE, PRIVATE_FLAG, PRIVATE_VERSIONS};
use efa_testing::programs::{TestFabric, needs, run, succeed, words};

/// Compiles C to a file in `directory`. Returns its path, or the compiler's messages.
pub(super) fn compile(
    directory: &Path,
    output: &str,
    source: &str,
    arguments: &[&str],
) -> Result<String, String> {
    let file = directory.join(format!("{output}.c"));
    fs::write(&file, source).unwrap();
    let mut compiler = Command::new("cc");
    compiler.current_dir(directory).args(["-g", "-o", output]);
    compiler.arg(&file).args(arguments);
    let compiled = run(compiler);
    match compiled.status.success() {
        true => Ok(directory.join(output).display().to_string()),
        false => Err(compiled.stderr),
    }
}

/// A libibverbs of another release in `directory`, with the private interface of that release,
/// without a device, and a vendor's library that is linked to it, uses the whole private interface
/// and registers its driver when it is loaded. The program that is linked to both prints the number
/// of devices.
fn another_rdma_core(directory: &Path, private: u32) {
    let register = format!("verbs_register_driver_{private}");
    let mut library = String::from("int ibv_get_device_list(void) { return 0; }\n");
    let mut vendor = String::new();
    let mut table = String::new();
    for name in PRIVATE.split_whitespace().chain([register.as_str()]) {
        writeln!(library, "void {name}(void) {{}}").unwrap();
        writeln!(vendor, "extern void {name}(void);").unwrap();
        writeln!(table, "    {name},").unwrap();
    }
    writeln!(library, "_Bool {PRIVATE_FLAG} = 1;").unwrap();
    write!(
        vendor,
        "extern _Bool {PRIVATE_FLAG};\n\
         void (*all[])(void) = {{\n{table}}};\n\
         _Bool *flag = &{PRIVATE_FLAG};\n\
         __attribute__((constructor)) static void loaded(void) {{ {register}(); }}\n\
         int vendor_flag(void) {{ return *flag; }}\n"
    )
    .unwrap();
    let versions = format!(
        "IBVERBS_1.1 {{ global: ibv_get_device_list; }};\n\
         IBVERBS_PRIVATE_{private} {{ global: *; }};\n"
    );
    fs::write(directory.join("versions"), versions).unwrap();
    compile(
        directory,
        "libibverbs.so.1",
        &library,
        &words("-shared -fPIC -Wl,-soname,libibverbs.so.1 -Wl,--version-script,versions"),
    )
    .unwrap();
    compile(
        directory,
        "libvendor.so",
        &vendor,
        &words("-shared -fPIC -Wl,-soname,libvendor.so libibverbs.so.1 -Wl,-z,now"),
    )
    .unwrap();
    let program = "
        #include <stdio.h>
        void *ibv_get_device_list(int *count);
        int vendor_flag(void);
        int main(void) {
            int count = -1;
            ibv_get_device_list(&count);
            printf(\"%d devices, flag %d\\n\", count, vendor_flag());
            return 0;
        }";
    compile(
        directory,
        "program",
        program,
        &words("libvendor.so libibverbs.so.1 -Wl,--disable-new-dtags,-rpath,$ORIGIN -Wl,-z,now"),
    )
    .unwrap();
}

/// An RPATH, which precedes `LD_LIBRARY_PATH`, leads to the program's own libibverbs.
#[test]
fn libraries_of_every_rdma_core_load() {
    needs!("cc", "gcc");
    for private in PRIVATE_VERSIONS {
        let directory = tempfile::tempdir().unwrap();
        another_rdma_core(directory.path(), *private);
        let program = directory.path().join("program");
        let fabric = TestFabric::new();
        let outcome = run(fabric.host(&[program.to_str().unwrap()]));
        let outcome = outcome.expect_success(&format!("private interface {private}"));
        assert_eq!(
            outcome.stdout, "1 devices, flag 0\n",
            "private interface {private}"
        );
    }
}

/// The development package installs the library as `libibverbs.so`, and programs that open it at
/// run time use this name too. The links in the test replace that package; they are found if ours
/// are not.
#[test]
fn every_library_name_leads_to_the_device() {
    needs!("cc", "gcc");
    let directory = tempfile::tempdir().unwrap();
    another_rdma_core(directory.path(), 34);
    for name in ["libibverbs.so", "libefa.so", "libefa.so.1"] {
        fs::copy(
            directory.path().join("libibverbs.so.1"),
            directory.path().join(name),
        )
        .unwrap();
    }
    let source = "
        #include <dlfcn.h>
        #include <stdio.h>
        int main(int count, char **names) {
            for (int i = 1; i < count; i++) {
                void *library = dlopen(names[i], RTLD_NOW);
                void *(*list)(int *) = library ? dlsym(library, \"ibv_get_device_list\") : NULL;
                int devices = -1;
                if (list)
                    list(&devices);
                printf(\"%s: %d devices, %s\\n\", names[i], devices,
                       library && dlsym(library, \"efadv_query_device\") ? \"efa\" : \"verbs\");
            }
            return 0;
        }";
    let opener = compile(directory.path(), "opener", source, &["-ldl"]).unwrap();
    let fabric = TestFabric::new();
    let mut command = fabric.host(&[
        &opener,
        "libibverbs.so",
        "libibverbs.so.1",
        "libefa.so",
        "libefa.so.1",
    ]);
    command.env("LD_LIBRARY_PATH", directory.path());
    let outcome = succeed(command, "opener");
    assert_eq!(
        outcome.stdout,
        "libibverbs.so: 1 devices, verbs\nlibibverbs.so.1: 1 devices, verbs\n\
         libefa.so: 1 devices, efa\nlibefa.so.1: 1 devices, efa\n"
    );
}
