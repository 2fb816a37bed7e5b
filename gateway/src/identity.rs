//! Who agents and callers are, from a file: the embedded default that needs no other system.

mod current;
mod file;

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU32},
};

use http::HeaderMap;
use proto::{AgentId, AgentName, ServiceName};
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

pub use self::current::Identities;
use crate::{promql::Labels, token::TokenHash};

/// Everybody whom one version of the identity file names.
#[derive(Debug, Default)]
pub struct Identity {
    agents: HashMap<AgentId, AgentName>,
    agents_by_name: HashMap<AgentName, AgentId>,
    projects: HashMap<AgentId, u64>,
    agent_tokens: HashMap<TokenHash, AgentId>,
    caller_tokens: HashMap<TokenHash, Arc<Grant>>,
}

/// What holding a caller's token means.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Who holds it.
    pub caller: Arc<Caller>,
    /// Cancelled when the token, or any right of its holder, is taken away: streams that stay are cut then.
    pub revoked: CancellationToken,
    /// The caller's requests in flight, whichever of its tokens they came with.
    pub in_flight: Arc<AtomicU32>,
}

/// Somebody who sends requests to clusters.
#[derive(Debug, PartialEq, Eq)]
pub struct Caller {
    /// For logs, and the user name of basic authentication.
    pub name: String,
    agents: Allowed<AgentId>,
    services: Allowed<ServiceName>,
    /// Who the caller is in the cluster.
    pub access_as: AccessAs,
    labels: Option<Labels>,
}

/// Everything, or what is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Allowed<T> {
    All,
    Only(Vec<T>),
}

/// Who a caller is in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessAs {
    /// agentk's own identity. The caller may impersonate others as far as agentk may.
    Agent,
    /// Somebody else; the caller's own `Impersonate-*` headers are refused.
    Impersonate {
        /// Who, for logs.
        username: String,
        /// The `Impersonate-*` headers that say so.
        headers: HeaderMap,
    },
}

impl Identity {
    /// The agent that holds a token, and the token's hash.
    pub fn agent(&self, token: &SecretString) -> Option<(AgentId, TokenHash)> {
        let hash = TokenHash::of(token);
        Some((*self.agent_tokens.get(&hash)?, hash))
    }

    /// Whether a token is still one of an agent's.
    pub fn is_active(&self, hash: &TokenHash) -> bool {
        self.agent_tokens.contains_key(hash)
    }

    /// What holding a token means to a caller.
    pub fn grant(&self, token: &SecretString) -> Option<&Arc<Grant>> {
        self.caller_tokens.get(&TokenHash::of(token))
    }

    /// Takes over from a former version: who keeps the same rights keeps its streams.
    fn succeed(&mut self, former: &Self) {
        // A caller's limit is one for all of its tokens, the new ones too.
        let in_flight: HashMap<&str, &Arc<AtomicU32>> =
            former.caller_tokens.values().map(|old| (&*old.caller.name, &old.in_flight)).collect();
        for new in self.caller_tokens.values_mut() {
            if let Some(old) = in_flight.get(&*new.caller.name) {
                Arc::make_mut(new).in_flight = Arc::clone(old);
            }
        }
        for (token, old) in &former.caller_tokens {
            match self.caller_tokens.get_mut(token) {
                Some(new) if new.caller == old.caller => {
                    Arc::make_mut(new).revoked = old.revoked.clone();
                }
                Some(_) | None => old.revoked.cancel(),
            }
        }
    }

    /// The agent that a URL names, by id or by name.
    pub fn find(&self, id_or_name: &str) -> Option<AgentId> {
        // No text is both.
        self.agents_by_name.get(id_or_name).copied().or_else(|| {
            let id = id_or_name.parse().ok()?;
            self.agents.contains_key(&id).then_some(id)
        })
    }

    /// An agent's name.
    pub fn name(&self, agent: AgentId) -> Option<&AgentName> {
        self.agents.get(&agent)
    }

    /// The project that an agent belongs to, if it belongs to one.
    pub fn project(&self, agent: AgentId) -> Option<u64> {
        self.projects.get(&agent).copied()
    }

    /// Every agent, in order of their names.
    pub fn agents(&self) -> Vec<(&AgentName, AgentId)> {
        let mut agents: Vec<_> = self.agents.iter().map(|(id, name)| (name, *id)).collect();
        agents.sort();
        agents
    }

    /// The agents that a caller may use, in order of their names.
    pub fn agents_of(&self, caller: &Caller) -> Vec<(&AgentName, AgentId)> {
        let mut agents = self.agents();
        agents.retain(|(_, id)| caller.may_use(*id));
        agents
    }

    /// How many agents and callers' tokens there are.
    pub fn counts(&self) -> (usize, usize) {
        (self.agents.len(), self.caller_tokens.len())
    }
}

impl Caller {
    /// Whether the caller may use an agent at all.
    pub fn may_use(&self, agent: AgentId) -> bool {
        self.agents.contains(&agent)
    }

    /// Whether the caller may use a service of the agents that it may use.
    pub fn may_ask(&self, service: &ServiceName) -> bool {
        self.services.contains(service)
    }

    /// The labels to which the caller's requests to this service are limited: those to `prometheus` and
    /// `prometheus.<name>`, if the caller has any.
    pub fn labels(&self, service: &ServiceName) -> Option<&Labels> {
        let rest = service.as_str().strip_prefix(ServiceName::PROMETHEUS)?;
        self.labels.as_ref().filter(|_| rest.is_empty() || rest.starts_with('.'))
    }
}

impl<T: PartialEq> Allowed<T> {
    fn contains(&self, item: &T) -> bool {
        match self {
            Self::All => true,
            Self::Only(list) => list.contains(item),
        }
    }
}
