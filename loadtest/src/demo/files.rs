//! The generated files of the demo: configuration, identity, tokens, certificate, kubeconfig.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::{CertificateParams, KeyPair};
use tokio::{fs, process::Command};

use crate::stack::child::find;

/// The name of the agent.
pub(super) const AGENT: &str = "demo";

/// The generated files. kas has only the hashes of the tokens.
#[derive(Debug)]
pub(super) struct DemoFiles {
    directory: PathBuf,
    certificate: String,
    caller_token: String,
}

impl DemoFiles {
    pub(super) async fn write(directory: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("cannot write to {}", directory.display());
        fs::create_dir_all(directory).await.with_context(cannot)?;
        fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700)).await.with_context(cannot)?;
        let directory = fs::canonicalize(directory).await.with_context(cannot)?;

        // kubectl sends no token over plain HTTP, so the demo needs a certificate.
        let key = KeyPair::generate()?;
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificate = CertificateParams::new(names)?.self_signed(&key)?.pem();
        let (agent_token, agent_hash) = new_token("agent").await?;
        let (caller_token, caller_hash) = new_token("caller").await?;

        let files = Self { directory, certificate, caller_token };
        files.write_file("kas.crt", &files.certificate).await?;
        files.write_file("kas.key", &key.serialize_pem()).await?;
        files.write_file("agent-token", &agent_token).await?;
        files.write_file("kas.yaml", CONFIG).await?;
        let identity = IDENTITY.replace("AGENT_HASH", &agent_hash).replace("CALLER_HASH", &caller_hash);
        files.write_file("identity.yaml", &identity).await?;
        Ok(files)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(super) fn caller_token(&self) -> &str {
        &self.caller_token
    }

    pub(super) async fn write_file(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.path(name);
        fs::write(&path, text).await.with_context(|| format!("cannot write {}", path.display()))?;
        fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).await?;
        Ok(())
    }

    /// Writes the kubeconfig for kubectl and helm.
    pub(super) async fn write_kubeconfig(&self, public: std::net::SocketAddr) -> anyhow::Result<()> {
        let text = KUBECONFIG
            .replace("SERVER", &format!("https://{public}/agents/{AGENT}/kubernetes"))
            .replace("AUTHORITY", &STANDARD.encode(&self.certificate))
            .replace("TOKEN", &self.caller_token);
        self.write_file("kubeconfig", &text).await
    }
}

/// Runs `kas token new`. Returns the token and its hash.
async fn new_token(holder: &str) -> anyhow::Result<(String, String)> {
    let kas = find("kas", None)?;
    let output = Command::new(&kas).args(["token", "new", holder]).output().await?;
    let text = String::from_utf8(output.stdout)?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim().to_owned())
    };
    field("token:").zip(field("hash:")).with_context(|| format!("{} made no token", kas.display()))
}

const CONFIG: &str = "\
agent:
  listen:
    address: 127.0.0.1:0
    certificate_file: kas.crt
    key_file: kas.key
  kubernetes_api:
    listen:
      address: 127.0.0.1:0
      certificate_file: kas.crt
      key_file: kas.key
      listen_grace_period: 0s
      shutdown_grace_period: 2s
observability:
  listen:
    address: 127.0.0.1:0
identity:
  file: identity.yaml
";

const IDENTITY: &str = "\
agents:
- {id: 1, name: demo, tokens: [AGENT_HASH]}
callers:
- {name: you, tokens: [CALLER_HASH], agents: [demo], services: [\"*\"]}
";

const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
clusters: [{name: kas-demo, cluster: {server: \"SERVER\", certificate-authority-data: AUTHORITY}}]
users: [{name: you, user: {token: \"TOKEN\"}}]
contexts: [{name: kas-demo, context: {cluster: kas-demo, user: you}}]
current-context: kas-demo
";
