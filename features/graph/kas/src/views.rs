//! The views of agents: counts and tables that the configuration of an agent defines and agentk computes.
//!
//! ```text
//!   agentk ──(watch of the service graph)──► feed ──► store ──► internal API of any replica
//! ```
//!
//! One tunnel of each agent is followed, at one replica. The last values are kept with their time, so that they can be read while the agent is
//! away.

pub mod api;
mod record;
pub mod rpc;
mod store;

use std::{
    convert::Infallible,
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
use tokio::sync::{Semaphore, watch};
use tunnel::{Body, Tunnel};

pub(crate) use self::record::ViewsRecord;
use self::{record::bounded, store::ViewStore};
use ::store::{StoreError, redis::RedisStore};
use kas_core::{
    agent_requests::request,
    attachments::{AgentSubscription, Attachment, OpeningTunnel, SubscriptionConfig, TunnelFeature},
    configuration::{ConfigurationState, wait_for_configuration},
    weak_map::WeakMap,
};

const SUBSCRIPTION: SubscriptionConfig = SubscriptionConfig {
    disabled_as: ServiceName::GRAPH,
    // agentk loads the graph meanwhile.
    head_timeout: Duration::from_secs(30),
    // agentk sends a line every 15 s.
    line_timeout: Some(Duration::from_secs(45)),
    // All views have at most 128 KiB.
    max_line: 256 << 10,
};
/// The pause before the next attempt, and between two looks at whether another replica follows the agent.
const PAUSE: Duration = Duration::from_secs(5);

/// Follows the views of the agents with tunnels to this replica. Clones are cheap, and share their state.
#[derive(Clone, Debug)]
pub(crate) struct ViewsService(Arc<Shared>);

struct Shared {
    replica: ReplicaId,
    store: ViewStore,
    /// Lets one tunnel of each agent follow.
    followers: WeakMap<AgentId, Semaphore>,
}

/// Follows the views of one agent through one of its tunnels.
#[derive(Debug)]
struct ViewsFeed {
    service: ViewsService,
    configuration: watch::Receiver<ConfigurationState>,
    subscription: AgentSubscription,
}

impl ViewsService {
    /// Builds the service of a replica.
    pub(crate) fn new(replica: ReplicaId, redis: Option<RedisStore>) -> Self {
        Self(Arc::new(Shared { replica, store: ViewStore::new(redis), followers: WeakMap::default() }))
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
    fn is_needed(&self, configuration: &ConfigurationState) -> bool {
        !names(configuration).is_empty()
    }

    fn attach(&self, opening: &OpeningTunnel<'_>) -> Option<Box<dyn Attachment>> {
        // An agent that does not receive its configuration computes no view of it.
        let has_views =
            opening.hello.serves(ServiceName::GRAPH) && opening.hello.serves(ServiceName::CONFIGURATION);
        if !has_views {
            return None;
        }
        Some(Box::new(ViewsFeed {
            service: self.clone(),
            configuration: opening.configuration.clone(),
            subscription: AgentSubscription::new(&SUBSCRIPTION, opening),
        }))
    }
}

impl Attachment for ViewsFeed {
    fn run<'a>(&'a mut self, tunnel: &'a Tunnel) -> BoxFuture<'a, ()> {
        Box::pin(self.serve(tunnel))
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
                    self.service.0.followers.get_or_insert_with(self.agent().id, || Semaphore::new(1));
                let _permit = follower.acquire().await;
                self.follow(tunnel, &names).await
            };
            tokio::select! {
                never = follow => match never {},
                () = wait_for_configuration(&mut configuration, |state| self::names(state) != names) => {}
            }
        }
    }

    fn agent(&self) -> &AgentIdentity {
        &self.subscription.agent
    }

    /// Follows the views, unless another replica does.
    async fn follow(&self, tunnel: &Tunnel, names: &[String]) -> Infallible {
        let follow = || async {
            match self.other_follower().await {
                Some(_) => Ok(()),
                None => Box::pin(self.follow_stream(tunnel, names)).await,
            }
        };
        self.subscription.repeat([PAUSE, PAUSE], follow).await
    }

    /// Returns the other replica that follows the agent, if there is one.
    async fn other_follower(&self) -> Option<ReplicaId> {
        let last = self.service.last(self.agent().id).await.ok()??;
        last.is_followed_by_another(self.service.0.replica, SystemTime::now()).then_some(last.replica)
    }

    /// Keeps the values of one stream until it ends.
    async fn follow_stream(&self, tunnel: &Tunnel, names: &[String]) -> Result<(), String> {
        let follow = async {
            tokio::select! {
                biased;
                // The stream would otherwise be a request in flight, for which agentk waits when it stops.
                () = tunnel.goaway_received() => Err("agentk drains the tunnel".to_owned()),
                ended = self.read_stream(tunnel, names) => ended,
            }
        };
        self.subscription.until_disabled(follow).await
    }

    async fn read_stream(&self, tunnel: &Tunnel, names: &[String]) -> Result<(), String> {
        let path = format!("{WATCH_PATH}?views=all");
        let request = request(Method::GET, ServiceName::GRAPH, &path, Body::empty());
        let mut lines = self.subscription.open(tunnel, request).await?;
        let mut current = None;
        loop {
            match lines.next::<GraphEvent>().await? {
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
        if let Err(error) = store.write(self.agent().id, record).await {
            tracing::debug!(agent.name = %self.agent().name, %error, "views not kept");
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
