//! Admits agents: authenticates the handshake, and applies the limits of its address, its token and its agent.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::SystemTime,
};

use access::{AgentAuthenticator, AgentIdentity, address_key, token::TokenHash};
use arc_swap::ArcSwap;
use http::{HeaderMap, header::AUTHORIZATION};
use kas_listen::metrics::Limit;
use parking_lot::Mutex;
use proto::{AgentId, Hello, TunnelId, header};
use secrecy::SecretString;
use store::{AddressLimit, AddressRefusal};
use tokio::time::Instant;

use super::{AgentServer, receptive::DialledTunnel, refusal::HandshakeError, version_skew::VersionSkew};
use crate::agent_memory::AgentMemory;

/// An agent whose token is valid and whose tunnel is within the limits.
#[derive(Clone, Debug)]
pub struct Admission {
    /// The agent that holds the token.
    pub identity: AgentIdentity,
    /// The token.
    pub token: SecretString,
    /// Reports the revocation of the token.
    source: Arc<dyn AgentAuthenticator>,
    permit: Arc<TunnelPermit>,
    client: ClientAddress,
    /// The identity file did not have the agent.
    pub is_of_gitlab: bool,
}

/// An agent whose tunnel is admitted.
#[derive(Debug)]
pub struct AuthenticatedAgent {
    pub(crate) identity: AgentIdentity,
    pub(crate) token: SecretString,
    /// Reports the revocation of the token.
    pub(super) source: Arc<dyn AgentAuthenticator>,
    pub(super) hello: Arc<Hello>,
    /// The hello with what GitLab's agentk says later.
    pub described: Arc<ArcSwap<Hello>>,
    pub(super) tunnel: TunnelId,
    /// The address of the agent.
    pub client: ClientAddress,
    /// The slot of the tunnel, if kas has dialled it.
    pub(super) dialled: Option<DialledTunnel>,
    permit: Arc<TunnelPermit>,
}

/// The address of an agent.
#[derive(Clone, Debug)]
pub struct ClientAddress {
    pub(super) address: IpAddr,
    /// The address for people, with its port if that is known.
    pub text: String,
}

impl Admission {
    /// Returns the memory of the agent.
    pub fn memory(&self) -> &AgentMemory {
        &self.permit.memory
    }
}

impl AuthenticatedAgent {
    /// Returns an agent that has described itself, with a new id for its tunnel.
    pub fn new(admission: Admission, hello: Hello) -> Self {
        let Admission { identity, token, source, permit, client, is_of_gitlab: _ } = admission;
        let (hello, tunnel) = (Arc::new(hello), TunnelId::random());
        let described = Arc::new(ArcSwap::new(Arc::clone(&hello)));
        Self { identity, token, source, hello, described, tunnel, client, dialled: None, permit }
    }

    /// Returns the memory of the agent.
    pub(crate) fn memory(&self) -> &AgentMemory {
        &self.permit.memory
    }
}

impl AgentServer {
    /// Authenticates the agent of a handshake and applies the limits.
    pub(super) async fn admit(
        &self,
        headers: &HeaderMap,
        client: &ClientAddress,
    ) -> Result<AuthenticatedAgent, HandshakeError> {
        let (token, identity, source) = self.identify(headers, client).await?;
        let hello = hello(headers)?;
        self.check_hello(&identity, &hello).inspect_err(|error| {
            let message = error.to_string();
            self.conflicts.record_refusal(identity.id, error.label(), message, SystemTime::now());
        })?;
        let permit = self.admit_tunnel(&identity, &token).await?;
        let is_of_gitlab = self.identities.load().name(identity.id).is_none();
        let admission = Admission { identity, token, source, permit, client: client.clone(), is_of_gitlab };
        Ok(AuthenticatedAgent::new(admission, hello))
    }

    /// Authenticates an agent that describes itself later, and applies the limits of its tunnel.
    pub async fn admit_agent(
        &self,
        headers: &HeaderMap,
        client: &ClientAddress,
    ) -> Result<Admission, HandshakeError> {
        self.check_client(client)?;
        let (token, identity, source) = self.identify(headers, client).await?;
        if let Some(pinned) = self.identities.load().cluster(identity.id) {
            let (agent, pinned) = (identity.name.clone(), pinned.to_owned());
            return Err(HandshakeError::WrongCluster { agent, pinned, reported: None });
        }
        let permit = self.admit_tunnel(&identity, &token).await?;
        let is_of_gitlab = self.identities.load().name(identity.id).is_none();
        Ok(Admission { identity, token, source, permit, client: client.clone(), is_of_gitlab })
    }

    /// Logs and counts the refusal of an agent.
    pub fn report_refusal(&self, client: &ClientAddress, error: &HandshakeError) {
        let reason = error.label();
        self.metrics.count_handshake(reason);
        if let Some(suppressed) = self.log_limit.admit(reason, std::time::Instant::now()) {
            let status = error.status();
            tracing::warn!(peer = client.text, %status, reason, suppressed, %error, "tunnel refused");
        }
    }

    /// Checks the address of a client before its credential.
    pub(super) fn check_client(&self, client: &ClientAddress) -> Result<(), HandshakeError> {
        if self.addresses.allows(client.address) {
            return Ok(());
        }
        let key = "agent.listen.allowed_networks".to_owned();
        Err(HandshakeError::AddressNotAllowed { address: client.address, key })
    }

    /// Authenticates an agent that may connect from its address.
    async fn identify(
        &self,
        headers: &HeaderMap,
        client: &ClientAddress,
    ) -> Result<(SecretString, AgentIdentity, Arc<dyn AgentAuthenticator>), HandshakeError> {
        if self.connections.draining.is_cancelled() {
            return Err(HandshakeError::Draining);
        }
        let (token, (identity, source)) =
            self.authenticate(headers, client.address).await?.ok_or(HandshakeError::Unauthorized)?;
        if !self.identities.load().agent_may_connect_from(identity.id, client.address) {
            let key = format!("the entry of agent {} in the identity file of kas", identity.name);
            return Err(HandshakeError::AddressNotAllowed { address: client.address, key });
        }
        Ok((token, identity, source))
    }

    /// Applies the limits of tunnels. After authentication: only agents may use up the rate that all agents share.
    async fn admit_tunnel(
        &self,
        identity: &AgentIdentity,
        token: &SecretString,
    ) -> Result<Arc<TunnelPermit>, HandshakeError> {
        let admitted = self.connection_rate.lock().admit(Instant::now());
        if let Err(wait) = admitted {
            self.metrics.count_limit(Limit::ConnectionRate);
            return Err(HandshakeError::ReplicaRateLimit { wait });
        }
        if let Err(wait) = self.token_rate.admit(TokenHash::of(token).digest()).await {
            self.metrics.count_limit(Limit::ConnectionsPerToken);
            return Err(HandshakeError::TokenRateLimit { agent: identity.name.clone(), wait });
        }
        let Some(permit) = self.tunnel_permits.try_acquire(identity.id) else {
            self.metrics.count_limit(Limit::TunnelsPerAgent);
            return Err(HandshakeError::TunnelLimit { agent: identity.name.clone() });
        };
        Ok(Arc::new(permit))
    }

    /// Returns the token of the request with the agent that holds it and the source that knows it; `None` if no agent holds it.
    ///
    /// The limits of the address follow the sources, so that one script in Redis counts for both limits. An address that has
    /// to wait reaches neither Redis nor GitLab.
    async fn authenticate(
        &self,
        headers: &HeaderMap,
        client: IpAddr,
    ) -> Result<Option<(SecretString, (AgentIdentity, Arc<dyn AgentAuthenticator>))>, HandshakeError> {
        let (token, address) = (bearer(headers), address_key(client));
        let recalled = match &token {
            Some(token) => self.sources.lookup(token).await,
            None => Some(false),
        };
        self.check_address(self.address_rate.check(address, recalled == Some(true)))?;
        let hash = token.as_ref().map(TokenHash::of);
        let agent = match token {
            Some(token) if recalled != Some(false) => {
                self.sources.authenticate(&token).await?.map(|agent| (token, agent))
            }
            _ => None,
        };
        let is_counted = |hash: TokenHash| self.repeated_tokens.record(address, &hash);
        let is_known = agent.is_some() || hash.is_some_and(is_counted);
        self.check_address(self.address_rate.admit(address, is_known).await)?;
        Ok(agent)
    }

    /// Counts the refusal of an address, and returns it as the reason for the response.
    fn check_address(&self, admitted: Result<(), AddressRefusal>) -> Result<(), HandshakeError> {
        admitted.map_err(|refusal| {
            self.metrics.count_limit(match refusal.limit {
                AddressLimit::Connections => Limit::ConnectionsPerAddress,
                AddressLimit::UnknownTokens => Limit::UnknownTokensPerAddress,
            });
            HandshakeError::AddressRateLimit(refusal)
        })
    }

    /// Checks the version and the cluster that an agentk reports.
    fn check_hello(&self, identity: &AgentIdentity, hello: &Hello) -> Result<(), HandshakeError> {
        let (kas, agentk) = (env!("CARGO_PKG_VERSION"), &hello.version);
        match VersionSkew::new(kas, agentk) {
            VersionSkew::TooOld => return Err(HandshakeError::TooOld { agentk: agentk.clone() }),
            VersionSkew::TooNew => return Err(HandshakeError::TooNew { agentk: agentk.clone() }),
            VersionSkew::Served | VersionSkew::Outdated => {}
        }
        match self.identities.load().cluster(identity.id) {
            Some(pinned) if hello.cluster.as_deref() != Some(pinned) => Err(HandshakeError::WrongCluster {
                agent: identity.name.clone(),
                pinned: pinned.to_owned(),
                reported: hello.cluster.clone(),
            }),
            Some(_) | None => Ok(()),
        }
    }
}

impl ClientAddress {
    /// Returns the address of a client whose connection comes from `peer`: the client, or a proxy.
    pub fn new(address: IpAddr, peer: SocketAddr) -> Self {
        let text = if address == peer.ip().to_canonical() { peer.to_string() } else { address.to_string() };
        Self { address, text }
    }
}

/// Returns the token of the agent, if there is exactly one `Authorization` header with it.
pub fn bearer(headers: &HeaderMap) -> Option<SecretString> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| SecretString::from(token.trim()))
}

fn hello(headers: &HeaderMap) -> Result<Hello, HandshakeError> {
    match headers.get(&header::HELLO).map(Hello::decode) {
        Some(Ok(hello)) => Ok(hello),
        Some(Err(error)) => {
            Err(HandshakeError::InvalidHello(format!("the header {} is invalid: {error}", header::HELLO)))
        }
        None => Err(HandshakeError::InvalidHello(format!("the header {} is missing", header::HELLO))),
    }
}

/// Counts the tunnels of each agent, including those that are being opened. Clones share the counts.
#[derive(Clone, Debug)]
pub struct TunnelPermits {
    limit: usize,
    agents: Arc<Mutex<HashMap<AgentId, AgentTunnels>>>,
}

/// The tunnels of one agent.
#[derive(Debug, Default)]
struct AgentTunnels {
    count: usize,
    memory: AgentMemory,
}

/// Counts one tunnel until it is dropped.
#[derive(Debug)]
pub(super) struct TunnelPermit {
    agent: AgentId,
    memory: AgentMemory,
    agents: Arc<Mutex<HashMap<AgentId, AgentTunnels>>>,
}

impl TunnelPermits {
    /// Allows `limit` tunnels for each agent.
    pub fn new(limit: usize) -> Self {
        Self { limit, agents: Arc::default() }
    }

    /// Takes a permit, or returns `None` if the agent has as many tunnels as allowed.
    pub(super) fn try_acquire(&self, agent: AgentId) -> Option<TunnelPermit> {
        let mut agents = self.agents.lock();
        let tunnels = agents.entry(agent).or_default();
        if tunnels.count >= self.limit {
            return None;
        }
        tunnels.count += 1;
        let memory = tunnels.memory.clone();
        Some(TunnelPermit { agent, memory, agents: Arc::clone(&self.agents) })
    }
}

impl Drop for TunnelPermit {
    fn drop(&mut self) {
        let mut agents = self.agents.lock();
        if let Some(tunnels) = agents.get_mut(&self.agent) {
            tunnels.count -= 1;
            if tunnels.count == 0 {
                agents.remove(&self.agent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_of_one_agent_are_limited() {
        let permits = TunnelPermits::new(2);
        let first = permits.try_acquire(AgentId(1)).unwrap();
        let _second = permits.try_acquire(AgentId(1)).unwrap();
        assert!(permits.try_acquire(AgentId(1)).is_none());
        assert!(permits.try_acquire(AgentId(2)).is_some(), "each agent has its own limit");
        drop(first);
        assert!(permits.try_acquire(AgentId(1)).is_some());
    }
}
