//! A kubeconfig with any content, loaded as agentk does at start. No credential plugin is run.
//!
//! * It is loaded or refused, quickly and in little memory (libFuzzer's `-timeout` and `-malloc_limit_mb`).
//! * An error about the kubeconfig begins with its name; every error is one line.
//! * Neither an error nor what is logged of a cluster shows what is a token, a password or a key.
#![no_main]

use std::sync::LazyLock;

use agent::cluster::{Cluster, ClusterError, ClusterOptions, Environment};
use fuzz::{CANARY, Scratch, canary_is_secret};
use libfuzzer_sys::fuzz_target;

const SECRET: &[&str] = &[
    "token",
    "password",
    "client-key-data",
    "client-certificate-data",
    "certificate-authority-data",
    "value",
    "args",
];

static FILE: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("kubeconfig"));

fuzz_target!(|data: &[u8]| {
    // A kubeconfig may name any file; those that never end are not ours to survive.
    if [&b"/dev"[..], b"/proc", b"/sys"]
        .iter()
        .any(|special| data.windows(special.len()).any(|at| at == *special))
    {
        return;
    }

    FILE.write(data);
    let file = FILE.path();
    let nothing = Environment { variable: &|_| None, service_account: file.with_file_name("none") };
    let options = ClusterOptions { kubeconfig: Some(file.to_owned()), context: None };
    let shown = match Cluster::load_in(&options, &nothing) {
        Ok(cluster) => format!("{cluster} {cluster:?} {:?}", cluster.endpoint()),
        Err(error) => {
            let text = error.to_string();
            let named = match &error {
                ClusterError::Kubeconfig { file: named, .. } => {
                    named == file && text.starts_with(file.to_str().expect("it is UTF-8"))
                }
                ClusterError::Read { path, .. } | ClusterError::Credential { path, .. } => {
                    text.contains(&*path.to_string_lossy())
                }
                ClusterError::Tls(_) => true,
                other => panic!("not an error of a kubeconfig: {other}"),
            };
            assert!(named, "no file is named: {text}");
            assert!(!text.contains(|c: char| c.is_control()), "{text:?}");
            format!("{text} {error:?}")
        }
    };
    if shown.contains(CANARY) {
        let secret = std::str::from_utf8(data).is_ok_and(|text| canary_is_secret(text, SECRET));
        assert!(!secret, "a secret is shown: {shown}");
    }
});
