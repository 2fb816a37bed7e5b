//! A private certificate authority and a certificate for 127.0.0.1 and the hosts of agents, generated with openssl.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::run;

/// The paths of PEM files.
#[derive(Clone)]
pub(crate) struct Certificates {
    /// The certificate of the authority.
    pub(crate) authority: PathBuf,
    /// The certificate of the server.
    pub(crate) certificate: PathBuf,
    /// The key of the server.
    pub(crate) key: PathBuf,
}

const CONFIG: &str = "\
[req]
distinguished_name = name
prompt = no
[name]
CN = e2e
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = IP:127.0.0.1, DNS:localhost, DNS:*.k8s.example.com
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
";

impl Certificates {
    /// Generates the files in a directory.
    pub(crate) fn generate(directory: &Path) -> Self {
        let file = |name: &str| directory.join(name);
        fs::write(file("openssl.cnf"), CONFIG).unwrap();
        let (authority, authority_key) = (file("ca.crt"), file("ca.key"));
        let (certificate, key) = (file("tls.crt"), file("tls.key"));
        let request = |extensions: &str, certificate: &Path, key: &Path| {
            let mut openssl = Command::new("openssl");
            openssl.args(["req", "-x509", "-days", "2", "-nodes", "-newkey", "ec"]);
            openssl.args(["-pkeyopt", "ec_paramgen_curve:prime256v1", "-extensions", extensions, "-config"]);
            openssl.arg(file("openssl.cnf")).arg("-keyout").arg(key).arg("-out").arg(certificate);
            openssl
        };
        openssl(&mut request("authority", &authority, &authority_key));
        openssl(
            request("server", &certificate, &key)
                .arg("-CA")
                .arg(&authority)
                .arg("-CAkey")
                .arg(&authority_key),
        );
        Self { authority, certificate, key }
    }
}

fn openssl(command: &mut Command) {
    let output = run(command, b"");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
