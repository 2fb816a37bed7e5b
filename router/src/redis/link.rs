//! Two connections to Redis: one for commands, which are pipelined, and one for events.
//!
//! To a Cluster there is one for commands to each of its nodes.

use std::{fmt, path::Path};

use futures_util::{Stream, StreamExt as _};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, IntoConnectionInfo as _, Pipeline,
    RedisError, RedisFuture, ScriptInvocation, TlsMode, Value,
    aio::{ConnectionLike, MultiplexedConnection, PubSub},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    sentinel::{SentinelClientBuilder, SentinelServerType},
};
use tokio::time::timeout;

use super::{
    counts::Counts,
    settings::{Address, Servers, Settings, secret},
};

/// Takes commands. Cheap to clone.
#[derive(Clone)]
pub(super) enum Link {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Settings {
    /// Whether the files that are named can be read and used, and go with the servers. Connects to nothing.
    pub fn check(&self) -> Result<(), String> {
        let addresses = match &self.servers {
            Servers::One(address) => std::slice::from_ref(address),
            Servers::Sentinel { sentinels, password_file, .. } => {
                secret(password_file.as_deref())?;
                sentinels
            }
            Servers::Cluster(nodes) => nodes,
        };
        for address in addresses {
            if self.tls.is_some() && matches!(address, Address::Unix(_)) {
                return Err(format!("{address}: TLS is for host and port"));
            }
            client(self, address)?;
        }
        Ok(())
    }
}

impl Link {
    /// Runs a script, which the server is sent once.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
        counts: &Counts,
    ) -> Result<T, String> {
        counts.commands.add();
        script.invoke_async(&mut self.clone()).await.map_err(|error| {
            counts.errors.add();
            explain(&error)
        })
    }
}

impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(one) => one.req_packed_command(cmd),
            Self::Cluster(cluster) => cluster.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::One(one) => one.req_packed_commands(pipeline, offset, count),
            Self::Cluster(cluster) => cluster.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::One(one) => one.get_db(),
            Self::Cluster(cluster) => cluster.get_db(),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

/// Connects. Events of the channel are heard from now on; their stream ends with the connection.
pub(super) async fn connect(
    settings: &Settings,
    channel: &str,
) -> Result<(Link, impl Stream<Item = Vec<u8>> + Unpin + use<>), String> {
    let both = async {
        let (link, client) = match &settings.servers {
            Servers::One(address) => {
                let client = client(settings, address)?;
                (Link::One(pipelined(settings, &client).await?), client)
            }
            Servers::Sentinel { master, sentinels, password_file } => {
                let client = sentinel(settings, master, sentinels, password_file.as_deref()).await?;
                (Link::One(pipelined(settings, &client).await?), client)
            }
            Servers::Cluster(nodes) => {
                let link = Link::Cluster(cluster(settings, nodes).await?);
                (link, any(settings, nodes).await?)
            }
        };
        let mut events = client.get_async_pubsub().await.map_err(|error| explain(&error))?;
        events.subscribe(channel).await.map_err(|error| explain(&error))?;
        Ok((link, payloads(events)))
    };
    let late = || format!("no connection within {} s", settings.dial_timeout.as_secs_f64());
    timeout(settings.dial_timeout, both).await.unwrap_or_else(|_| Err(late()))
}

fn payloads(events: PubSub) -> impl Stream<Item = Vec<u8>> + Unpin {
    events.into_on_message().map(|message| message.get_payload_bytes().to_vec())
}

async fn pipelined(settings: &Settings, client: &Client) -> Result<MultiplexedConnection, String> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(settings.dial_timeout))
        .set_response_timeout(Some(settings.response_timeout));
    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
    connection.map_err(|error| explain(&error))
}

fn client(settings: &Settings, address: &Address) -> Result<Client, String> {
    let certificates = settings.certificates()?;
    let info = address
        .connection(certificates.is_some())
        .into_connection_info()
        .map_err(|error| explain(&error))?
        .set_redis_settings(settings.credentials()?);
    let client = match certificates {
        Some(certificates) => Client::build_with_tls(info, certificates),
        None => Client::open(info),
    };
    client.map_err(|error| explain(&error))
}

/// The server that Sentinels call the master, which has said itself that it is one.
async fn sentinel(
    settings: &Settings,
    master: &str,
    sentinels: &[Address],
    password_file: Option<&Path>,
) -> Result<Client, String> {
    let certificates = settings.certificates()?;
    let tls = certificates.is_some();
    let addresses = sentinels.iter().map(|address| address.connection(tls));
    let mut builder = SentinelClientBuilder::new(addresses, master, SentinelServerType::Master)
        .map_err(|error| explain(&error))?
        .set_client_to_redis_db(settings.database.into());
    if let Some(username) = &settings.username {
        builder = builder.set_client_to_redis_username(username);
    }
    if let Some(password) = secret(settings.password_file.as_deref())? {
        builder = builder.set_client_to_redis_password(password);
    }
    if let Some(password) = secret(password_file)? {
        builder = builder.set_client_to_sentinel_password(password);
    }
    if let Some(certificates) = certificates {
        builder = builder
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_sentinel_tls_mode(TlsMode::Secure)
            .set_client_to_redis_certificates(certificates.clone())
            .set_client_to_sentinel_certificates(certificates);
    }
    let mut client = builder.build().map_err(|error| explain(&error))?;
    client
        .async_get_client()
        .await
        .map_err(|error| format!("the Sentinels name no server: {}", explain(&error)))
}

async fn cluster(settings: &Settings, nodes: &[Address]) -> Result<ClusterConnection, String> {
    let certificates = settings.certificates()?;
    let mut builder =
        ClusterClient::builder(nodes.iter().map(|node| node.connection(certificates.is_some())))
            .connection_timeout(settings.dial_timeout)
            .response_timeout(settings.response_timeout)
            .retries(1);
    if let Some(username) = &settings.username {
        builder = builder.username(username);
    }
    if let Some(password) = secret(settings.password_file.as_deref())? {
        builder = builder.password(password);
    }
    if let Some(certificates) = certificates {
        builder = builder.tls(TlsMode::Secure).certs(certificates);
    }
    let client = builder.build().map_err(|error| explain(&error))?;
    client.get_async_connection().await.map_err(|error| explain(&error))
}

/// A node that takes connections: events reach all nodes.
async fn any(settings: &Settings, nodes: &[Address]) -> Result<Client, String> {
    let mut last = "the Cluster has no nodes".to_owned();
    for node in nodes {
        let client = client(settings, node)?;
        match timeout(settings.dial_timeout / 4, client.get_async_pubsub()).await {
            Ok(Ok(_)) => return Ok(client),
            Ok(Err(error)) => last = explain(&error),
            Err(_) => last = format!("{node} does not answer"),
        }
    }
    Err(last)
}

/// What went wrong and what to look at, in a line without secrets.
fn explain(error: &RedisError) -> String {
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            format!(
                "Redis refuses kas's user name or password (redis.username, redis.password_file): {error}"
            )
        }
        _ if error.is_timeout() => "Redis did not answer in time".to_owned(),
        _ if error.is_connection_refusal() => format!("Redis refuses connections: {error}"),
        _ => error.to_string(),
    }
}
