// SPDX-License-Identifier: GPL-2.0

//! Makes the declarations of libibverbs with the `bindgen` program, which the modules need as well.

use std::env;
use std::path::Path;
use std::process::Command;

const HEADER: &str = "/usr/include/infiniband/verbs.h";

const FUNCTIONS: &str = "ibv_(get_device_list|free_device_list|get_device_name|open_device|\
     close_device|alloc_pd|dealloc_pd|reg_mr|dereg_mr|create_cq|destroy_cq|create_qp|modify_qp|\
     destroy_qp)";

const TYPES: &str = "ibv_(send_wr|recv_wr|wc|qp_attr|qp_attr_mask|access_flags|send_flags|\
     wr_opcode|wc_status|wc_opcode|qp_state|qp_type|mtu)";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={HEADER}");
    println!("cargo:rustc-link-lib=dylib=ibverbs");
    let out = env::var("OUT_DIR").expect("cargo sets it");
    let done = Command::new("bindgen")
        .arg(HEADER)
        .args([
            "--rust-target",
            "1.85",
            "--no-doc-comments",
            "--no-layout-tests",
        ])
        .args(["--no-prepend-enum-name", "--with-derive-default"])
        .args(["--allowlist-function", FUNCTIONS, "--allowlist-type", TYPES])
        .arg("--output")
        .arg(Path::new(&out).join("ibverbs.rs"))
        .status();
    match done {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("bindgen could not read {HEADER}: {status}"),
        Err(error) => panic!("bindgen does not run: {error}"),
    }
}
