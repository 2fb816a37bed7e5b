//! A kubeconfig with any content, loaded as agentk does at start. No credential plugin is run.
//!
//! * The file is accepted or rejected quickly and in little memory (libFuzzer's `-timeout` and `-malloc_limit_mb`).
//! * An error about the kubeconfig begins with the file's name. Every error is one line.
//! * Neither an error nor the `Display` and `Debug` of a cluster contains a token, a password or a key.

use agentk_core::cluster::{Cluster, ClusterEnvironment, ClusterError, KubeconfigOptions};

use crate::input::{CANARY, InputFile, canary_is_secret};

const SECRET: &[&str] = &[
    "token",
    "password",
    "client-key-data",
    "client-certificate-data",
    "certificate-authority-data",
    "value",
    "args",
];

/// Checks one input.
pub fn run(data: &[u8]) {
    // A kubeconfig may name any file. Reading a device may never end.
    if [&b"/dev"[..], b"/proc", b"/sys"]
        .iter()
        .any(|special| data.windows(special.len()).any(|at| at == *special))
    {
        return;
    }

    let file = InputFile::new("kubeconfig", data);
    let file = file.path();
    let nothing = ClusterEnvironment { variable: &|_| None, service_account: file.with_file_name("none") };
    let options = KubeconfigOptions { file: Some(file.to_owned()), context: None };
    let shown = match Cluster::load_in(&options, &nothing) {
        Ok(cluster) => format!("{cluster} {cluster:?} {:?}", cluster.url()),
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
        let secret = str::from_utf8(data).is_ok_and(|text| canary_is_secret(text, SECRET));
        assert!(!secret, "a secret is shown: {shown}");
    }
}
