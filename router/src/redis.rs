//! The directory in Redis: for several replicas.
//!
//! ```text
//!   announce, withdraw ──► Own, in memory ──► Keeper ──► {kas}:routes:<me>   what this replica holds
//!                                              │  └────► {kas}:replica:<me>  that it lives
//!                                              └──────► kas:events ─┐        what has changed
//!                                                                   ▼
//!   lookup ──► Answers ──(miss)──► {kas}:routes:<each other>    Members, Answers, Waiting of the others
//! ```
//!
//! * **Each replica writes its own records only**, and all of its records have one life: nothing is refreshed for each
//!   agent, a dead replica's records are dead with it, and no replica can touch what another one said. Within a
//!   replica, one task writes, and each connection's writes are fenced off from those of the connection before.
//! * **Redis is made to say what memory says.** Nobody waits for it to be told. After each connection the records are
//!   written anew, beside the old ones, and take their place at once.
//! * **Memory serves while Redis does not**: own agents, the replicas, old answers.
//! * **Nobody polls.** What others say arrives as events; a missed one is noticed, and what is known is old then.
//! * **Redis is not believed.** What is read from it is bounded in Redis, and parsed as foreign bytes.
//!
//! The keys, and what they cost: [`SCHEMA`].

mod burial;
mod cache;
mod counts;
mod examine;
mod keeper;
mod keys;
mod limiter;
mod link;
mod listing;
mod members;
mod own;
mod scripts;
mod settings;
mod waiting;
pub mod wire;

use std::{sync::Arc, time::SystemTime};

use parking_lot::Mutex;
use proto::{AgentId, ReplicaId};
use tokio::sync::{Notify, watch};

pub use self::counts::{Count, Counts};
pub use self::examine::{Examination, Finding};
pub use self::keeper::Keeper;
pub use self::keys::SCHEMA;
pub use self::settings::{Address, InvalidAddress, Servers, Settings, Tls};
use self::{
    cache::{Answers, Found},
    keys::Keys,
    link::Link,
    members::Members,
    own::Own,
    scripts::Scripts,
    waiting::Waiting,
    wire::{Heartbeat, Held, MAX_RECORD},
};
use crate::store::{BoxFuture, Health, Holdings, Instance, Record, Replica, Route, RouteStore, StoreError};

/// A [`RouteStore`] that the replicas share through Redis. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RedisStore(Arc<Shared>);

/// What the store and its keeper share.
#[derive(Debug)]
struct Shared {
    me: ReplicaId,
    /// As it was at the start.
    heartbeat: Heartbeat,
    load: Mutex<Option<u32>>,
    settings: Settings,
    keys: Keys,
    scripts: Scripts,
    own: Mutex<Own>,
    /// There is something that Redis is to be told.
    unsaid: Notify,
    members: Mutex<Members>,
    /// The dead who have left something behind.
    unburied: Mutex<Vec<ReplicaId>>,
    answers: Answers,
    waiting: Waiting,
    line: Mutex<Option<Line>>,
    health: watch::Sender<Health>,
    counts: Counts,
}

/// A connection to Redis, and a way to say that it is broken.
#[derive(Clone, Debug)]
struct Line {
    link: Link,
    broken: Arc<Notify>,
}

impl RedisStore {
    /// A store that speaks for `replica`, of this version of kas. It talks to Redis as long as its keeper runs.
    pub fn new(settings: Settings, replica: Replica, kas: &str) -> (Self, Keeper) {
        let started = wire::seconds(SystemTime::now());
        let fleet = settings.fleet.clone();
        let heartbeat =
            Heartbeat { url: replica.url, fleet: fleet.clone(), kas: kas.to_owned(), started, tunnels: None };
        let why = "Redis was not reached yet".into();
        let shared = Arc::new(Shared {
            me: replica.id,
            heartbeat,
            load: Mutex::new(None),
            keys: Keys::new(&settings.prefix),
            settings,
            scripts: Scripts::new(),
            own: Mutex::default(),
            unsaid: Notify::new(),
            members: Mutex::new(Members::new(replica.id, fleet)),
            unburied: Mutex::default(),
            answers: Answers::new(),
            waiting: Waiting::default(),
            line: Mutex::new(None),
            health: watch::Sender::new(Health::Degraded { since: SystemTime::now(), why }),
            counts: Counts::default(),
        });
        (Self(Arc::clone(&shared)), Keeper::new(shared))
    }

    /// What is counted.
    pub fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// Completes once Redis knows what this replica holds, at once if it does.
    pub async fn healthy(&self) {
        // The sender lives as long as `self`.
        _ = self.0.health.subscribe().wait_for(|health| *health == Health::Healthy).await;
    }

    /// How Redis fares, whenever that changes.
    pub fn health_changes(&self) -> watch::Receiver<Health> {
        self.0.health.subscribe()
    }
}

impl Shared {
    /// As it is now.
    fn heartbeat(&self) -> Heartbeat {
        Heartbeat { tunnels: *self.load.lock(), ..self.heartbeat.clone() }
    }

    fn line(&self) -> Result<Line, StoreError> {
        let line = self.line.lock().clone();
        line.ok_or_else(|| match &*self.health.borrow() {
            Health::Degraded { why, .. } => StoreError(why.to_string()),
            Health::Healthy => StoreError("the connection to Redis was lost".to_owned()),
        })
    }

    /// Nothing more is asked over this line, and the keeper makes another.
    fn give_up(&self, line: &Line) {
        let mut current = self.line.lock();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(&current.broken, &line.broken)) {
            *current = None;
            line.broken.notify_one();
        }
    }

    /// Asks Redis.
    async fn ask(&self, agent: AgentId, before: Option<Found>) -> Result<Found, StoreError> {
        let line = self.line()?;
        let others = self.members.lock().ids();
        let mut script = self.scripts.lookup.key(self.keys.gone());
        for other in &others {
            script.key(self.keys.routes(*other));
        }
        script.arg(agent.0).arg(MAX_RECORD);
        let found: Vec<Vec<u8>> = line.link.run(&script, &self.counts).await.map_err(|error| {
            self.give_up(&line);
            StoreError(error)
        })?;

        let (gone, records) =
            found.split_first().ok_or_else(|| StoreError("Redis said nothing".to_owned()))?;
        let gone_since = self.number(gone).and_then(wire::time);
        let mut routes = Vec::new();
        let members = self.members.lock();
        for (replica, record) in others.into_iter().zip(records) {
            let before = || {
                let known = before.iter().flat_map(|before| &before.routes);
                known.copied().find(|route| route.replica == replica && members.is_uncertain(replica))
            };
            let said = self.record(record).map(|held| Route { replica, epoch: held.epoch });
            routes.extend(said.or_else(before));
        }
        Ok(Found { routes, gone_since })
    }

    /// Reads a record, if there is one that can be read.
    fn record(&self, text: &[u8]) -> Option<Held> {
        if text.is_empty() {
            return None;
        }
        Held::decode(text).inspect_err(|error| self.reject("a record", error)).ok()
    }

    fn number(&self, text: &[u8]) -> Option<u64> {
        if text.is_empty() {
            return None;
        }
        let number = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        if number.is_none() {
            self.reject("a time", &"it is no number");
        }
        number
    }

    fn reject(&self, what: &'static str, why: &dyn std::fmt::Display) {
        self.counts.rejected.add();
        tracing::debug!(what, %why, "something in Redis cannot be used");
    }

    /// What was found, without the dead and with what is here.
    fn judge(&self, agent: AgentId, found: Result<Found, StoreError>) -> Result<Record, StoreError> {
        let own = self.own.lock();
        let here = own.get(agent).map(|held| Route { replica: self.me, epoch: held.epoch });
        let found = match (found, here) {
            (Ok(found), _) => found,
            (Err(_), Some(_)) => Found::default(),
            (Err(error), None) => return Err(error),
        };

        let members = self.members.lock();
        let live = found.routes.into_iter().filter(|route| members.get(route.replica).is_some());
        let routes: Vec<Route> = live.chain(here).collect();
        let gone_since = found.gone_since.max(own.left(agent)).filter(|_| routes.is_empty());
        Ok(Record { routes, gone_since })
    }
}

impl RouteStore for RedisStore {
    fn announce(&self, agent: AgentId, route: Route) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let shared = &self.0;
            if route.replica != shared.me {
                return Err(StoreError("a replica speaks for itself only".to_owned()));
            }
            if shared.own.lock().announce(agent, route.epoch) {
                shared.unsaid.notify_one();
                shared.waiting.wake(agent);
            }
            Ok(())
        })
    }

    fn describe(&self, agent: AgentId, replica: ReplicaId, instances: Vec<Instance>) {
        if replica == self.0.me {
            self.0.own.lock().describe(agent, instances);
            self.0.unsaid.notify_one();
        }
    }

    fn withdraw(&self, agent: AgentId, route: Route) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let shared = &self.0;
            let own = route.replica == shared.me;
            if own && shared.own.lock().withdraw(agent, route.epoch, SystemTime::now()) {
                shared.unsaid.notify_one();
                shared.waiting.wake(agent);
            }
            Ok(())
        })
    }

    fn lookup(&self, agent: AgentId) -> BoxFuture<'_, Result<Record, StoreError>> {
        Box::pin(async move {
            let shared = &self.0;
            let ask = |before| shared.ask(agent, before);
            let found = shared.answers.get(agent, &shared.counts, ask).await;
            shared.judge(agent, found)
        })
    }

    fn replica(&self, id: ReplicaId) -> Option<Replica> {
        if id == self.0.me {
            return Some(Replica { id, url: self.0.heartbeat.url.clone() });
        }
        self.0.members.lock().get(id).cloned()
    }

    fn replicas(&self) -> Vec<Replica> {
        self.0.members.lock().all()
    }

    fn tell_load(&self, replica: ReplicaId, tunnels: Option<u32>) {
        if replica == self.0.me {
            *self.0.load.lock() = tunnels;
        }
    }

    fn loads(&self) -> Vec<(ReplicaId, u32)> {
        if self.health() != Health::Healthy {
            return Vec::new();
        }
        let own = *self.0.load.lock();
        let mut loads = self.0.members.lock().loads();
        loads.extend(own.map(|own| (self.0.me, own)));
        loads
    }

    fn change(&self, agent: AgentId) -> BoxFuture<'static, ()> {
        Box::pin(self.0.waiting.wait(agent))
    }

    fn holdings<'a>(&'a self, agents: &'a [AgentId]) -> BoxFuture<'a, Holdings> {
        Box::pin(self.0.holdings(agents))
    }

    fn health(&self) -> Health {
        self.0.health.borrow().clone()
    }
}
