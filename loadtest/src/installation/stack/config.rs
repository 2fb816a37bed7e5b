//! The files of kas and agentk: configuration, identities, tokens, certificates.

use std::{
    net::SocketAddr,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rcgen::{CertificateParams, KeyPair};
use sha2::{Digest as _, Sha256};

use super::write_file;

/// The name of the agent in the identity file.
pub const AGENT: &str = "demo";
/// The connections that use TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// None.
    #[default]
    Off,
    /// The tunnel.
    Tunnel,
    /// The tunnel and the connections of callers.
    Both,
}

impl From<bool> for Tls {
    fn from(both: bool) -> Self {
        if both { Self::Both } else { Self::Off }
    }
}

/// The configuration of kas and agentk.
#[expect(clippy::struct_excessive_bools, reason = "independent options of an installation")]
#[derive(Clone, Debug, Default)]
pub struct StackConfig {
    /// The connections that use TLS.
    pub tls: Tls,
    /// If true, each request is logged (level `debug`).
    pub debug: bool,
    /// If true, agentk checks each request against a policy.
    pub policy: bool,
    /// If true, kas and agentk use the protocol of GitLab's.
    pub gitlab_protocol: bool,
    /// The port for agents; 0 for any free one.
    pub agent_port: u16,
    /// The port for callers; 0 for any free one.
    pub public_port: u16,
    /// The number of additional agents load-2, load-3, …, whose tokens are in the file `agent-tokens`. For them the limit of
    /// connections per token is the default.
    pub extra_agents: u32,
    /// The limit of new tunnels per second, if there is one.
    pub per_second: Option<u32>,
    /// If true, kas has its default limits of tunnels.
    pub default_limits: bool,
    /// If true, kas has its default grace periods; if not, it stops at once.
    pub default_grace_periods: bool,
    /// The section `agent.configuration` of kas.
    pub configuration: Option<serde_json::Value>,
    /// The section `agent.gitops` of kas.
    pub gitops: Option<serde_json::Value>,
    /// If true, kas writes the audit log to `audit.log`.
    pub audit: bool,
    /// Further sections of the configuration of kas.
    pub sections: String,
    /// Further callers of the identity file.
    pub callers: String,
    /// The address of the Redis that replicas share.
    pub redis: Option<SocketAddr>,
    /// The address at which other replicas reach this one, if it is not that of its private listener.
    pub private_address: Option<SocketAddr>,
    /// The address that agentk dials, if it is not that of kas.
    pub dial: Option<SocketAddr>,
    /// The directory of kas and agentk, if it is not that of this program.
    pub programs: Option<PathBuf>,
    /// If true, both programs run in valgrind, which writes their instruction counts to `kas.callgrind` and `agentk.callgrind`.
    pub callgrind: bool,
}

/// Writes the tokens, their hashes, the certificate and the secret of the replicas.
pub(super) fn write_identity(directory: &Path, extra_agents: u32, callers: &str) -> anyhow::Result<()> {
    let key = KeyPair::generate()?;
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    write_file(directory, "kas.crt", &CertificateParams::new(names)?.self_signed(&key)?.pem())?;
    write_file(directory, "kas.key", &key.serialize_pem())?;
    write_file(directory, "peer-secret", &BASE64_STANDARD.encode(rand::random::<[u8; 32]>()))?;
    let mut identity = IDENTITY.to_owned();
    for holder in ["agent", "caller"] {
        let token = new_token(holder);
        write_file(directory, format!("{holder}-token"), &token)?;
        identity = identity.replace(&format!("{}_HASH", holder.to_uppercase()), &hash(&token));
    }
    if extra_agents > 0 {
        // Agent 1 exists always.
        let (agents, tokens) = new_agents(2..=extra_agents + 1);
        identity = identity.replacen("callers:", &format!("{agents}callers:"), 1);
        write_file(directory, "agent-tokens", &tokens)?;
    }
    identity += callers;
    write_file(directory, "identity.yaml", &identity)
}

/// Returns the configuration of kas.
pub(super) fn config(setup: &StackConfig) -> String {
    let tls = |used| if used { ", certificate_file: kas.crt, key_file: kas.key" } else { "" };
    let (agent_tls, public_tls) = (tls(setup.tls != Tls::Off), tls(setup.tls == Tls::Both));
    let (agent_port, public_port) = (setup.agent_port, setup.public_port);
    let per_token = if setup.extra_agents > 0 { 100 } else { 1_000_000 };
    let per_second = setup.per_second.unwrap_or(1_000_000);
    let limits = if setup.default_limits {
        String::new()
    } else {
        format!(
            ", max_tunnels_per_agent: 50000, max_connections: 60000,
    connections_per_token_per_minute: {per_token}, connections_per_address_per_minute: 1000000,
    unknown_tokens_per_address_per_minute: 1000000, connections_per_second: {per_second}"
        )
    };
    let (public_grace, private_grace) = if setup.default_grace_periods {
        ("", "")
    } else {
        (", listen_grace_period: 0s, shutdown_grace_period: 1s", ", listen_grace_period: 0s")
    };
    let audit = if setup.audit { "  audit: {sink: file, file: audit.log}\n" } else { "" };
    let level = if setup.debug { "debug" } else { "info" };
    let section = |name: &str, section: &Option<serde_json::Value>| {
        section.as_ref().map(|section| format!("  {name}: {section}\n")).unwrap_or_default()
    };
    let configuration = section("configuration", &setup.configuration) + &section("gitops", &setup.gitops);
    let mut config = format!(
        "agent:
  listen: {{address: \"127.0.0.1:{agent_port}\"{agent_tls}{limits}}}
  kubernetes_api:
    listen: {{address: \"127.0.0.1:{public_port}\"{public_tls}{public_grace}}}
{configuration}observability:
  listen: {{address: \"127.0.0.1:0\"}}
  logging: {{level: {level}}}
{audit}identity: {{file: identity.yaml}}
"
    );
    config += &setup.sections;
    if let Some(redis) = setup.redis {
        config += &format!(
            "private_api:
  listen: {{address: \"127.0.0.1:0\", authentication_secret_file: peer-secret{private_grace}}}
redis: {{server: {{address: \"{redis}\"}}}}
"
        );
    }
    config
}

/// Returns a kubeconfig for a cluster that accepts every caller.
pub fn kubeconfig(cluster: SocketAddr) -> String {
    format!(
        "apiVersion: v1
kind: Config
clusters: [{{name: upstream, cluster: {{server: \"http://{cluster}\"}}}}]
users: [{{name: nobody, user: {{}}}}]
contexts: [{{name: upstream, context: {{cluster: upstream, user: nobody}}}}]
current-context: upstream
"
    )
}

/// Returns the entries of the agents load-1, load-2, … for the identity file, and their tokens, one per line.
pub fn new_agents(ids: RangeInclusive<u32>) -> (String, String) {
    let (mut agents, mut tokens) = (String::new(), String::new());
    for id in ids {
        let token = new_token("agent");
        agents += &format!("- {{id: {id}, name: load-{id}, tokens: [\"{}\"]}}\n", hash(&token));
        tokens += &token;
        tokens.push('\n');
    }
    (agents, tokens)
}

/// Returns a new token for an agent or a caller.
pub fn new_token(holder: &str) -> String {
    let random: [u8; 32] = rand::random();
    format!("kas-{holder}-{}", hex(&random))
}

/// Returns the hash of a token in the format of the identity file.
pub fn hash(token: &str) -> String {
    format!("sha256:{}", hex(&Sha256::digest(token.as_bytes())))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One agent and one caller. The hashes of their tokens replace the placeholders.
pub const IDENTITY: &str = "\
agents:
- {id: 1, name: demo, tokens: [\"AGENT_HASH\"]}
callers:
- {name: you, tokens: [\"CALLER_HASH\"], agents: [\"*\"], services: [\"*\"], audit: true}
";

/// Three rules on services and resources, the last of which allows everything.
pub const POLICY: &str = "\
rules:
- {name: no-secrets, action: deny, services: [kubernetes], resources: [secrets]}
- {name: no-shells, action: deny, services: [kubernetes], resources: [pods/exec, pods/attach]}
- {name: everything, action: allow, services: [\"*\"]}
";
