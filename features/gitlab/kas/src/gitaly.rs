//! Gitaly, the Git servers of a GitLab installation, over gRPC.
//!
//! GitLab names the server, its token and the repository for each project. [`GitalyClient`] keeps one connection to each server
//! and limits the calls; [`GitalyRepository`] reads one repository with three RPCs:
//!
//! | RPC | question |
//! |---|---|
//! | `InfoRefsUploadPack` | which commit has the branch? |
//! | `GetTreeEntries` | which agents have a file? |
//! | `TreeEntry` | what is in a file? |

mod address;
mod config;
mod connect;
mod limits;
pub mod messages;
mod references;
mod repository;
mod servers;

use std::{
    collections::HashMap,
    fmt::Write as _,
    sync::Arc,
    time::{Duration, SystemTime},
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use http::uri::PathAndQuery;
use moka::future::Cache;
use prost::Message;
use rustls::ClientConfig;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use sha2::Sha256;
use store::redis::RedisStore;
use tonic::{
    Code, Request, Status, Streaming,
    client::Grpc,
    metadata::{Ascii, MetadataKey, MetadataValue},
    transport::Channel,
};
use tonic_prost::ProstCodec;

use self::limits::{CallLimits, CallQueue};
pub(crate) use self::servers::GitalyServers;
pub use self::{
    address::{GitalyAddress, HostPort, InvalidAddress},
    config::{GitalyConfig, GlobalRateLimit, ServerRateLimit},
    references::{ReferenceError, ReferenceScanner, ResolvedReference},
    repository::GitalyRepository,
};

/// The largest message of Gitaly in bytes. It sends files and references in parts of 128 KiB.
const MAX_MESSAGE: usize = 4 << 20;

/// The most servers to which connections stay open.
const MAX_SERVERS: u64 = 256;

/// The time after which a connection without calls is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// The prefix of the metadata that GitLab may add to calls. Other keys could change the meaning of a call.
const FEATURE_PREFIX: &str = "gitaly-feature-";

/// The address and the credential of the Gitaly server of a repository, as GitLab sends them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GitalyServer {
    /// The address: `tcp://`, `tls://`, `unix:` or `dns:`.
    pub address: String,
    /// The secret with which calls are signed. Empty for a server without authentication.
    pub token: SecretString,
    /// Metadata that GitLab wants with each call. Only keys that begin with `gitaly-feature-` are sent.
    pub features: HashMap<String, String>,
}

/// Calls Gitaly servers. Clones are cheap and share connections and limits.
#[derive(Clone, Debug)]
pub struct GitalyClient {
    servers: Cache<GitalyAddress, Arc<ServerConnection>>,
    limits: Arc<CallLimits>,
    tls: Option<Arc<ClientConfig>>,
}

/// The connection to one server.
#[derive(Debug)]
struct ServerConnection {
    channel: Channel,
    /// The calls to this server that wait for its limit, one after the other.
    queue: CallQueue,
}

/// The error of a call.
#[derive(Debug, thiserror::Error)]
enum GitalyError {
    #[error(transparent)]
    Address(#[from] InvalidAddress),
    #[error("calls to Gitaly wait longer than {wait} s: gitaly.{0} of kas is too low", wait = limits::MAX_WAIT.as_secs())]
    RateLimited(&'static str),
    #[error("{}", describe(.0))]
    Status(Status),
}

impl GitalyClient {
    /// Creates a client whose limits are counted over all replicas that share `redis`.
    ///
    /// Without a configuration, TLS uses the authorities of the system.
    pub fn new(config: &GitalyConfig, redis: Option<&RedisStore>, tls: Option<Arc<ClientConfig>>) -> Self {
        Self {
            servers: Cache::builder().max_capacity(MAX_SERVERS).time_to_idle(IDLE_TIMEOUT).build(),
            limits: Arc::new(CallLimits::new(config, redis)),
            tls,
        }
    }

    /// Sends a call and returns the stream of its responses.
    async fn call<Q, R>(
        &self,
        server: &GitalyServer,
        agent: Option<proto::AgentId>,
        method: &'static str,
        message: Q,
    ) -> Result<Streaming<R>, GitalyError>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let address: GitalyAddress = server.address.parse()?;
        let connection = self.connection(&address).await;
        self.limits.admit(&address, &connection.queue, agent).await.map_err(GitalyError::RateLimited)?;

        let mut request = Request::new(message);
        add_metadata(&mut request, server);
        let mut grpc = Grpc::new(connection.channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        let unavailable = |error: tonic::transport::Error| Status::unavailable(error.to_string());
        grpc.ready().await.map_err(|error| GitalyError::Status(unavailable(error)))?;
        let codec = ProstCodec::<Q, R>::default();
        let response = grpc.server_streaming(request, PathAndQuery::from_static(method), codec).await;
        Ok(response.map_err(GitalyError::Status)?.into_inner())
    }

    async fn connection(&self, address: &GitalyAddress) -> Arc<ServerConnection> {
        let open = async {
            let channel = connect::channel(address.clone(), self.tls.clone());
            Arc::new(ServerConnection { channel, queue: CallQueue::default() })
        };
        self.servers.get_with_by_ref(address, open).await
    }
}

fn add_metadata<T>(request: &mut Request<T>, server: &GitalyServer) {
    let metadata = request.metadata_mut();
    for (key, value) in &server.features {
        let key = key.to_ascii_lowercase();
        let key = key.starts_with(FEATURE_PREFIX).then(|| MetadataKey::<Ascii>::from_bytes(key.as_bytes()));
        if let (Some(Ok(key)), Ok(value)) = (key, value.parse()) {
            metadata.insert(key, value);
        }
    }
    if let Some(value) = authorization(&server.token, SystemTime::now()) {
        metadata.insert("authorization", value);
    }
}

/// Describes the error of a call in one line of a bounded length.
fn describe(status: &Status) -> String {
    let message = status.message();
    let text: String = message.chars().take(200).flat_map(char::escape_default).collect();
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => {
            format!(
                "Gitaly refuses the token that GitLab sent ({text}): compare the clocks of kas and Gitaly"
            )
        }
        code => format!("Gitaly: {code:?}: {text}"),
    }
}

/// Returns the value of `authorization` with version 2 of Gitaly's tokens: an HMAC-SHA-256 of the time, in seconds since 1970. It
/// is `None` if the server has no secret.
///
/// Gitaly accepts a token for 30 s before and after its time.
fn authorization(token: &SecretString, now: SystemTime) -> Option<MetadataValue<Ascii>> {
    let token = token.expose_secret();
    if token.is_empty() {
        return None;
    }
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs().to_string();
    let mac = Hmac::<Sha256>::new_from_slice(token.as_bytes()).expect("any length is a key");
    let mut value = String::from("Bearer v2.");
    for byte in mac.chain_update(seconds.as_bytes()).finalize().into_bytes() {
        write!(value, "{byte:02x}").expect("a string takes any text");
    }
    let mut value: MetadataValue<Ascii> = format!("{value}.{seconds}").parse().expect("it is ASCII");
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The MAC is the output of `printf 1700000000 | openssl dgst -sha256 -hmac secret`.
    #[test]
    fn token_is_a_mac_of_the_time() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let value = authorization(&"secret".into(), now).unwrap();
        let expected =
            "Bearer v2.4b227f8831b3763d066901751ad4c583ed08832bf1924a4ec50c2e871b1e8586.1700000000";
        assert_eq!(value.to_str().unwrap(), expected);
        assert_eq!(format!("{value:?}"), "Sensitive");
        assert!(authorization(&"".into(), now).is_none(), "a server without authentication");
    }
}
