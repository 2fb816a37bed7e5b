//! Connects to Redis: one connection for commands, which are pipelined, and one for events.
//!
//! To a Cluster, there is one connection for commands to each node.

use std::{fmt, path::Path, sync::Arc};

use futures_util::{Stream, StreamExt as _};
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, IntoConnectionInfo as _, Pipeline, RedisFuture,
    ScriptInvocation, TlsMode, Value,
    aio::{ConnectionLike, MultiplexedConnection, PubSub},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    sentinel::{SentinelClientBuilder, SentinelServerType},
};
use tokio::{sync::Notify, time::timeout};

use super::{
    RedisMetrics, RedisSettingsError, RedisStoreError,
    settings::{RedisAddress, RedisServers, RedisSettings, read_password},
};

/// A connection for commands. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct RedisConnection {
    transport: Transport,
    /// Notified when a command of a request failed, so that the sync task makes another connection.
    pub(super) failed: Arc<Notify>,
}

#[derive(Clone)]
enum Transport {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl RedisSettings {
    /// Checks that the files of the settings can be read and used, and fit the servers. It connects to nothing.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or has nothing that can be used.
    pub fn validate(&self) -> Result<(), RedisStoreError> {
        let addresses = match &self.servers {
            RedisServers::Single(address) => std::slice::from_ref(address),
            RedisServers::Sentinel { sentinels, password_file, .. } => {
                read_password(password_file.as_deref())?;
                sentinels
            }
            RedisServers::Cluster(nodes) => nodes,
        };
        for address in addresses {
            if self.tls.is_some() && matches!(address, RedisAddress::Unix(_)) {
                return Err(RedisSettingsError::TlsToSocket(address.clone()).into());
            }
            build_client(self, address)?;
        }
        Ok(())
    }
}

impl RedisConnection {
    fn new(transport: Transport) -> Self {
        Self { transport, failed: Arc::new(Notify::new()) }
    }

    /// Returns whether both are clones of one connection.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.failed, &other.failed)
    }

    /// Runs a script. Its text is sent once to each server, and its digest afterwards.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
        metrics: &RedisMetrics,
    ) -> Result<T, RedisStoreError> {
        metrics.commands.increment();
        script.invoke_async(&mut self.transport.clone()).await.map_err(|error| {
            metrics.errors.increment();
            RedisStoreError::from(error)
        })
    }
}

impl ConnectionLike for Transport {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Single(connection) => connection.req_packed_command(cmd),
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
            Self::Single(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(cluster) => cluster.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Single(connection) => connection.get_db(),
            Self::Cluster(cluster) => cluster.get_db(),
        }
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single(_) => "Single",
            Self::Cluster(_) => "Cluster",
        })
    }
}

/// Connects and subscribes to the channel. The stream yields the payloads of its events and ends with the connection.
pub(super) async fn connect(
    settings: &RedisSettings,
    channel: &str,
) -> Result<(RedisConnection, impl Stream<Item = Vec<u8>> + Unpin + use<>), RedisStoreError> {
    let both = async {
        let (transport, client) = match &settings.servers {
            RedisServers::Single(address) => {
                let client = build_client(settings, address)?;
                (Transport::Single(connect_pipelined(settings, &client).await?), client)
            }
            RedisServers::Sentinel { master, sentinels, password_file } => {
                let client = discover_master(settings, master, sentinels, password_file.as_deref()).await?;
                (Transport::Single(connect_pipelined(settings, &client).await?), client)
            }
            RedisServers::Cluster(nodes) => {
                let transport = Transport::Cluster(connect_cluster(settings, nodes).await?);
                (transport, reachable_node(settings, nodes).await?)
            }
        };
        let mut events = client.get_async_pubsub().await?;
        events.subscribe(channel).await?;
        Ok((RedisConnection::new(transport), into_payloads(events)))
    };
    let connected = timeout(settings.dial_timeout, both).await;
    connected.unwrap_or_else(|_| Err(RedisStoreError::DialTimeout(settings.dial_timeout)))
}

fn into_payloads(events: PubSub) -> impl Stream<Item = Vec<u8>> + Unpin {
    events.into_on_message().map(|message| message.get_payload_bytes().to_vec())
}

async fn connect_pipelined(
    settings: &RedisSettings,
    client: &Client,
) -> Result<MultiplexedConnection, RedisStoreError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(settings.dial_timeout))
        .set_response_timeout(Some(settings.response_timeout));
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

fn build_client(settings: &RedisSettings, address: &RedisAddress) -> Result<Client, RedisStoreError> {
    let certificates = settings.certificates()?;
    let info = address
        .connection(certificates.is_some())
        .into_connection_info()?
        .set_redis_settings(settings.credentials()?);
    Ok(match certificates {
        Some(certificates) => Client::build_with_tls(info, certificates)?,
        None => Client::open(info)?,
    })
}

/// Returns a client of the server that the Sentinels name as master. The library verifies the role with the server.
async fn discover_master(
    settings: &RedisSettings,
    master: &str,
    sentinels: &[RedisAddress],
    password_file: Option<&Path>,
) -> Result<Client, RedisStoreError> {
    let certificates = settings.certificates()?;
    let tls = certificates.is_some();
    let addresses = sentinels.iter().map(|address| address.connection(tls));
    let mut builder = SentinelClientBuilder::new(addresses, master, SentinelServerType::Master)?
        .set_client_to_redis_db(settings.database.into());
    if let Some(username) = &settings.username {
        builder = builder.set_client_to_redis_username(username);
    }
    if let Some(password) = read_password(settings.password_file.as_deref())? {
        builder = builder.set_client_to_redis_password(password);
    }
    if let Some(password) = read_password(password_file)? {
        builder = builder.set_client_to_sentinel_password(password);
    }
    if let Some(certificates) = certificates {
        builder = builder
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_sentinel_tls_mode(TlsMode::Secure)
            .set_client_to_redis_certificates(certificates.clone())
            .set_client_to_sentinel_certificates(certificates);
    }
    let mut client = builder.build()?;
    let found = client.async_get_client().await;
    found.map_err(|error| RedisStoreError::Sentinels(Box::new(error.into())))
}

async fn connect_cluster(
    settings: &RedisSettings,
    nodes: &[RedisAddress],
) -> Result<ClusterConnection, RedisStoreError> {
    let certificates = settings.certificates()?;
    let mut builder =
        ClusterClient::builder(nodes.iter().map(|node| node.connection(certificates.is_some())))
            .connection_timeout(settings.dial_timeout)
            .response_timeout(settings.response_timeout)
            .retries(1);
    if let Some(username) = &settings.username {
        builder = builder.username(username);
    }
    if let Some(password) = read_password(settings.password_file.as_deref())? {
        builder = builder.password(password);
    }
    if let Some(certificates) = certificates {
        builder = builder.tls(TlsMode::Secure).certs(certificates);
    }
    Ok(builder.build()?.get_async_connection().await?)
}

/// Returns a client of the first node that accepts a connection. A Cluster delivers events to all nodes.
async fn reachable_node(settings: &RedisSettings, nodes: &[RedisAddress]) -> Result<Client, RedisStoreError> {
    let mut last = RedisStoreError::NoNodes;
    for node in nodes {
        let client = build_client(settings, node)?;
        match timeout(settings.dial_timeout / 4, client.get_async_pubsub()).await {
            Ok(Ok(_)) => return Ok(client),
            Ok(Err(error)) => last = error.into(),
            Err(_) => last = RedisStoreError::NodeTimeout(node.clone()),
        }
    }
    Err(last)
}
