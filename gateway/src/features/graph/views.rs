//! The views of agents: counts and tables that the configuration of an agent defines and agentk computes.
//!
//! ```text
//!   agentk ──(watch of the service graph)──► feed ──► store ──► internal API of any replica
//! ```
//!
//! One tunnel of each agent is followed, at one replica. The last values are kept with their time, so that they can be read while the agent is
//! away.

mod record;
mod store;

use std::{
    fmt,
    future::pending,
    sync::Arc,
    time::{Duration, SystemTime},
};

use access::AgentIdentity;
use futures_util::future::BoxFuture;
use http::Method;
use proto::{
    AgentId, ReplicaId, ServiceName,
    graph::{GraphEvent, View, WATCH_PATH},
};
use tokio::{
    sync::{Semaphore, watch},
    time::{sleep, timeout},
};
use tunnel::{Body, Tunnel};

pub(crate) use self::record::ViewsRecord;
use self::{record::bounded, store::ViewStore};
use crate::features::FeatureContext;
use crate::{
    agent_memory::AgentMemory,
    agent_requests::{request, send},
    attachments::{Attachment, Lines, OpeningTunnel, TunnelFeature},
    configuration::{ConfigurationState, wait_for_configuration},
    kill_switch::{KillSwitch, RequestAttributes},
    weak_map::WeakMap,
};
use router::StoreError;

/// The time that agentk may take for the head of the response. It loads the graph meanwhile.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The time without a line after which agentk is taken for dead: it sends one every 15 s.
const LINE_TIMEOUT: Duration = Duration::from_secs(45);
/// The interval of looks at whether agentk drains the tunnel.
const DRAIN_PERIOD: Duration = Duration::from_secs(1);
/// The pause before the next attempt, and between two looks at whether another replica follows the agent.
const PAUSE: Duration = Duration::from_secs(5);
/// The longest line of agentk, in bytes: all views have at most 128 KiB.
const MAX_LINE: usize = 256 << 10;

/// Follows the views of the agents with tunnels to this replica. Clones are cheap, and share their state.
#[derive(Clone, Debug)]
pub struct ViewsService(Arc<Shared>);

struct Shared {
    replica: ReplicaId,
    store: ViewStore,
    kill_switch: Arc<KillSwitch>,
    /// Lets one tunnel of each agent follow.
    followers: WeakMap<AgentId, Semaphore>,
}

/// Follows the views of one agent through one of its tunnels.
#[derive(Debug)]
struct ViewsFeed {
    service: ViewsService,
    agent: AgentIdentity,
    configuration: watch::Receiver<ConfigurationState>,
    memory: AgentMemory,
}

impl ViewsService {
    /// Builds the service of a replica.
    pub(in crate::features) fn of_replica(context: &FeatureContext<'_>) -> Self {
        Self(Arc::new(Shared {
            replica: context.replica,
            store: ViewStore::new(context.redis.cloned()),
            kill_switch: Arc::clone(context.kill_switch),
            followers: WeakMap::default(),
        }))
    }

    /// Returns the last values of the views of an agent, or `None` if there were none in the last week.
    ///
    /// # Errors
    ///
    /// Redis did not answer.
    pub(crate) async fn last(&self, agent: AgentId) -> Result<Option<ViewsRecord>, StoreError> {
        self.0.store.read(agent).await
    }
}

impl TunnelFeature for ViewsService {
    fn attach(&self, opening: &OpeningTunnel<'_>) -> Option<Box<dyn Attachment>> {
        // An agent that does not receive its configuration computes no view of it.
        let has_views =
            opening.hello.serves(ServiceName::GRAPH) && opening.hello.serves(ServiceName::CONFIGURATION);
        if !has_views {
            return None;
        }
        Some(Box::new(ViewsFeed {
            service: self.clone(),
            agent: opening.agent.clone(),
            configuration: opening.configuration.clone(),
            memory: opening.memory.clone(),
        }))
    }
}

impl Attachment for ViewsFeed {
    fn run<'a>(&'a mut self, tunnel: &'a Tunnel) -> BoxFuture<'a, ()> {
        Box::pin(self.serve(tunnel))
    }
}

/// Waits until agentk drains the tunnel. The stream would otherwise be a request in flight, for which agentk waits when it stops.
async fn leaving(tunnel: &Tunnel) {
    while !tunnel.is_closed() {
        sleep(DRAIN_PERIOD).await;
    }
}

impl ViewsFeed {
    /// Serves the tunnel. The future never completes.
    async fn serve(&self, tunnel: &Tunnel) {
        let mut configuration = self.configuration.clone();
        let mut had_views = false;
        loop {
            let names = names(&configuration.borrow_and_update());
            if names.is_empty() && had_views {
                // Values of views that do not exist any more are of no use.
                self.keep(Vec::new()).await;
            }
            had_views = !names.is_empty();
            let follow = async {
                if names.is_empty() {
                    return pending().await;
                }
                let follower =
                    self.service.0.followers.get_or_insert_with(self.agent.id, || Semaphore::new(1));
                let _permit = follower.acquire().await;
                self.follow(tunnel, &names).await;
            };
            tokio::select! {
                () = Box::pin(follow) => {}
                () = wait_for_configuration(&mut configuration, |state| self::names(state) != names) => {}
            }
        }
    }

    /// Follows the views, unless another replica does. The future never completes.
    async fn follow(&self, tunnel: &Tunnel, names: &[String]) {
        loop {
            if self.other_follower().await.is_none()
                && let Err(error) = self.follow_stream(tunnel, names).await
            {
                tracing::debug!(agent.name = %self.agent.name, error, "the views of an agent are not followed");
            }
            sleep(PAUSE).await;
        }
    }

    /// Returns the other replica that follows the agent, if there is one.
    async fn other_follower(&self) -> Option<ReplicaId> {
        let last = self.service.last(self.agent.id).await.ok()??;
        last.is_followed_by_another(self.service.0.replica, SystemTime::now()).then_some(last.replica)
    }

    /// Keeps the values of one stream until it ends.
    async fn follow_stream(&self, tunnel: &Tunnel, names: &[String]) -> Result<(), String> {
        let service: ServiceName = ServiceName::GRAPH.parse().expect("a constant that is a service name");
        let attributes = RequestAttributes::of_kas(&service, self.agent.attributes());
        let disabled = self.service.0.kill_switch.disabled(attributes);
        tokio::select! {
            biased;
            error = disabled => Err(error.message),
            () = leaving(tunnel) => Err("agentk drains the tunnel".to_owned()),
            ended = self.read_stream(tunnel, names) => ended,
        }
    }

    async fn read_stream(&self, tunnel: &Tunnel, names: &[String]) -> Result<(), String> {
        let path = format!("{WATCH_PATH}?views=all");
        let request = request(Method::GET, ServiceName::GRAPH, &path, Body::empty());
        let response = send(tunnel, request, HEAD_TIMEOUT).await?;
        let mut lines = Lines::new(response.into_body(), MAX_LINE).counted(&self.memory);
        let mut current = None;
        loop {
            let line = timeout(LINE_TIMEOUT, lines.next::<GraphEvent>()).await;
            match line.map_err(|_| "agentk sends nothing")?? {
                None => return Ok(()),
                Some(GraphEvent::Views { views }) => current = Some(bounded(views, names)),
                Some(GraphEvent::Alive {}) => {
                    // Two replicas may begin at the same time.
                    if self.other_follower().await.is_some_and(|other| other < self.service.0.replica) {
                        return Err("another replica follows them".to_owned());
                    }
                }
                Some(_) => continue,
            }
            // A line without a change also confirms the values, and that this replica follows.
            if let Some(views) = &current {
                self.keep(views.clone()).await;
            }
        }
    }

    /// Keeps the values of this time.
    async fn keep(&self, views: Vec<View>) {
        let Shared { replica, store, .. } = &*self.service.0;
        let record = ViewsRecord { time: SystemTime::now(), replica: *replica, views };
        if let Err(error) = store.write(self.agent.id, record).await {
            tracing::debug!(agent.name = %self.agent.name, %error, "views not kept");
        }
    }
}

/// Returns the names of the views that the configuration defines.
fn names(state: &ConfigurationState) -> Vec<String> {
    let views =
        state.configuration().and_then(|configuration| configuration.pointer("/graph/views")?.as_array());
    let names = views.into_iter().flatten().filter_map(|view| view["name"].as_str());
    names.map(str::to_owned).collect()
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("store", &self.store).finish_non_exhaustive()
    }
}
