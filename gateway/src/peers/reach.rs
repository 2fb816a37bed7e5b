//! Whether the other replicas reach this one at the address that they are told. They are asked to try: what this replica
//! sees of itself may be the inside of a wall.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use http::Request;
use proto::{AgentId, Reason, ReplicaId, ServiceName, header};
use rand::seq::IndexedRandom as _;
use router::{Class, Replica, RouteStore};
use tokio::time::{sleep, timeout};
use tunnel::Body;

use super::{Peers, stamp::Kind, trouble::Trouble};
use crate::{admin::Readiness, forward::Destination};

/// How long one replica may take to greet another.
const GREET_TIMEOUT: Duration = Duration::from_secs(2);
/// How long it may take to be greeted back.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// So many of the others are asked.
const ASKED: usize = 3;
/// How often, while all is well.
const PERIOD: Duration = Duration::from_secs(60);
/// How often while it is not, or nobody was there to ask.
const SOON: Duration = Duration::from_secs(5);

/// Asks, again and again.
#[derive(Debug)]
pub struct Reach {
    /// The way to the others.
    pub peers: Peers,
    /// Who they are.
    pub store: Arc<dyn RouteStore>,
    /// What they are told of this replica.
    pub own: Replica,
}

/// Who has found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Witness {
    /// Another replica.
    Others,
    /// This one, for want of others.
    Own,
}

impl Reach {
    /// Keeps the readiness and the metric told.
    pub async fn keep(self, readiness: Readiness) {
        let mut before = None;
        loop {
            let found = self.look().await;
            if before.as_ref() != Some(&found) {
                let url = &self.own.url;
                match &found {
                    Ok(Witness::Others) => tracing::info!(url, "other replicas reach this one"),
                    Ok(Witness::Own) => {
                        tracing::info!(url, "this replica reaches itself; no other is there to try")
                    }
                    Err(why) => tracing::error!(
                        url,
                        why,
                        "other replicas do not reach this one: requests at them for agents that are connected here only \
                         fail; OWN_PRIVATE_API_URL or private_api.listen.address is wrong, or a firewall is in between"
                    ),
                }
            }
            self.peers.0.metrics.reachable.set(i64::from(found.is_ok()));
            readiness.unreachable(found.as_ref().err().map(|why| why.as_str().into()));
            let period = if found == Ok(Witness::Others) { PERIOD } else { SOON };
            before = Some(found);
            sleep(period).await;
        }
    }

    /// Who has reached this replica, or why somebody has not.
    pub async fn look(&self) -> Result<Witness, String> {
        let mut others = self.store.replicas();
        others.retain(|other| other.id != self.own.id);
        let asked: Vec<&Replica> = others.sample(&mut rand::rng(), ASKED).collect();
        let answers = asked.iter().map(|other| self.peers.call(other));
        let mut reached = false;
        for (other, answer) in asked.iter().zip(join_all(answers).await) {
            match answer {
                Ok(()) => reached = true,
                Err(Trouble::Declines { reason: Reason::TunnelLost, message }) => {
                    return Err(format!("replica {} at {} tried: {message}", other.id, other.url));
                }
                // It could not be asked, or has not heard of this one yet: it knows nothing.
                Err(_) => {}
            }
        }
        if reached {
            return Ok(Witness::Others);
        }
        let own = self.peers.greet(&self.own).await;
        own.map(|()| Witness::Own).map_err(|trouble| format!("this replica tried: {trouble}"))
    }
}

impl Peers {
    /// Whether a replica is there, is the one that it should be, and believes this one.
    pub async fn greet(&self, replica: &Replica) -> Result<(), Trouble> {
        timeout(GREET_TIMEOUT, self.say(Kind::Greet, replica)).await.unwrap_or(Err(Trouble::Silent))
    }

    /// Asks a replica to greet this one.
    async fn call(&self, replica: &Replica) -> Result<(), Trouble> {
        timeout(CALL_TIMEOUT, self.say(Kind::Call, replica)).await.unwrap_or(Err(Trouble::Silent))
    }

    /// Over a connection of its own: what was open before proves nothing.
    async fn say(&self, kind: Kind, replica: &Replica) -> Result<(), Trouble> {
        let (tunnel, driving) = self.0.dial.dial(replica).await?;
        let nobody = Destination {
            agent: AgentId(0),
            name: "nobody".parse().expect("it is a name"),
            service: ServiceName::CONTROL.parse().expect("it is a name"),
            class: Class::Short,
        };
        let mut question = Request::new(Body::empty());
        let service = ServiceName::CONTROL.parse().expect("it is a word");
        question.headers_mut().insert(header::SERVICE, service);
        let seal = self.stamp(&mut question, kind, replica, &nobody);
        tokio::select! {
            answer = tunnel.call(question) => self.verdict(answer, seal.as_ref()),
            ended = driving => Err(Trouble::Unreachable(ended.to_string())),
        }
    }

    /// What is told to `who`, who has asked to be greeted.
    pub(super) async fn call_back(
        &self,
        store: &dyn RouteStore,
        who: ReplicaId,
    ) -> Result<(), (Reason, String)> {
        let Some(replica) = store.replica(who) else {
            return Err((Reason::AgentNotConnected, "the directory does not say where you are".to_owned()));
        };
        self.greet(&replica).await.map_err(|trouble| (Reason::TunnelLost, trouble.to_string()))
    }
}
