//! Loads the objects of all resources, and follows their changes.
//!
//! A list of one object is the truth about a permission. Then the watcher of kube-rs lists pages and watches, or has both in one stream
//! where the API server can do that. After an error it continues where it was, or lists again, and objects that are not shown then are
//! deleted.

mod kinds;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{
    StreamExt as _, TryStreamExt as _,
    future::pending,
    stream::{BoxStream, FuturesUnordered},
};
use kube::{
    Api,
    api::ListParams,
    core::{ApiResource, DynamicResourceScope, ObjectList, PartialObjectMeta},
    runtime::watcher::{self, Event, InitialListStrategy, watcher},
};
use proto::graph::ResourceState;
use serde_json::Value;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};

use self::kinds::{LoadedKinds, discover};
use crate::{
    cache::Cache,
    graph::{Graph, LimitExceeded},
    object::{self, TrimmedObject, WholeObject},
    resources::{self, Contents, ResourceKind},
    time,
};

/// The resources that are listed at the same time.
const LISTS: usize = 4;
/// The objects of one page.
const PAGE: u32 = 250;
/// The time between two looks at resources that cannot be listed, and at the kinds that exist.
const LOOK_AGAIN: Duration = Duration::from_secs(300);
/// The pauses between looks at the kinds after a definition has changed: the API server serves a new kind a moment later.
const AFTER_CHANGE: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
];
/// The first and the longest wait after an error.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The shortest and the longest time of one watch, in seconds. kube-rs allows less than 295.
const WATCH_SECONDS: std::ops::Range<u32> = 200..290;
/// The first minor version of Kubernetes 1 whose API servers send the initial list in a watch (KEP-3157).
const STREAMING_SINCE: u32 = 34;
/// The longest wait for the kinds of the API server.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// The state that the loads of one cache share.
struct Loader<'a> {
    cache: &'a Arc<Cache>,
    lists: Arc<Semaphore>,
    streaming: bool,
    /// Notified when a CustomResourceDefinition or an APIService has changed, or a kind is not served any more.
    definitions: Notify,
}

/// One list and watch: a resource in all namespaces, or in one.
struct Load<'a> {
    loader: &'a Loader<'a>,
    resource: usize,
    api: ApiResource,
    contents: Contents,
    /// Empty for all namespaces.
    namespace: String,
    states: Arc<parking_lot::Mutex<BTreeMap<String, LoadState>>>,
}

/// The state of one load.
type LoadState = (ResourceState, String);

/// All objects of a resource were known before its load has ended.
type WasComplete = bool;

/// The reason why a load cannot go on at once.
enum Interrupted {
    /// The API server does not let agentk list the objects.
    Denied(String),
    /// The API server does not know the resource any more.
    Missing(String),
    /// There are too many objects.
    TooMany(LimitExceeded),
    /// The API server does not respond, or responds with an error.
    Failed(String),
}

/// Loads all objects into a cache and follows their changes. The future never completes; the cache is not updated any more once it is
/// dropped.
pub async fn keep_loaded(cache: &Arc<Cache>) {
    let client = &cache.config().client;
    let version = timeout(DISCOVERY_TIMEOUT, client.apiserver_version()).await;
    let minor = version.ok().and_then(Result::ok).and_then(|version| {
        version.minor.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().ok()
    });
    let streaming = minor.is_some_and(|minor| minor >= STREAMING_SINCE);
    let lists = Arc::new(Semaphore::new(LISTS));
    let loader = Loader { cache, lists, streaming, definitions: Notify::new() };
    let mut kinds = LoadedKinds::new(&loader);
    let mut wait = BACKOFF.0;
    let mut pauses = AFTER_CHANGE[..0].iter();
    loop {
        let found = kinds.drive(timeout(DISCOVERY_TIMEOUT, discover(client, cache.section()))).await;
        let pause = match found {
            Ok(Ok((found, left_out))) => {
                kinds.update(found);
                cache.write(|graph| graph.set_left_out(left_out));
                wait = BACKOFF.0;
                pauses.next().copied().unwrap_or(LOOK_AGAIN)
            }
            failed => {
                if let Ok(Err(error)) = failed {
                    tracing::debug!(%error, "the kinds of the API server are not known");
                }
                wait = (wait * 2).min(BACKOFF.1);
                wait
            }
        };
        if kinds.drive(timeout(pause, loader.definitions.notified())).await.is_ok() {
            pauses = AFTER_CHANGE.iter();
            if let Some(first) = pauses.next() {
                kinds.drive(sleep(*first)).await;
            }
        }
    }
}

impl<'a> Loader<'a> {
    /// Adds a resource to the graph. Returns its number, and the future that loads it, in the namespaces to which agentk is limited.
    fn load(&'a self, kind: ResourceKind) -> (usize, impl Future<Output = WasComplete> + Send + use<'a>) {
        let limited = self.cache.config().namespaces.clone().filter(|_| kind.namespaced);
        let namespaces = limited.unwrap_or_else(|| vec![String::new()]);
        let (api, contents) = (kind.api.clone(), kind.contents());
        let resource = self.cache.write(|graph| graph.add_resource(kind));
        let states = namespaces.iter().map(|name| (name.clone(), (ResourceState::Loading, String::new())));
        let states = Arc::new(parking_lot::Mutex::new(states.collect::<BTreeMap<_, _>>()));
        let loads = namespaces.into_iter().map(move |namespace| {
            let (api, states) = (api.clone(), Arc::clone(&states));
            let load = Load { loader: self, resource, api, contents, namespace, states };
            async move { load.run().await }
        });
        let mut loads: FuturesUnordered<_> = loads.collect();
        let ended = async move {
            match loads.next().await {
                Some(ended) => ended,
                // agentk is limited to no namespace.
                None => pending().await,
            }
        };
        (resource, ended)
    }
}

impl Load<'_> {
    /// Lists and watches, until the API server does not know the resource any more.
    async fn run(&self) -> WasComplete {
        let mut wait = BACKOFF.0;
        let mut was_complete = false;
        loop {
            let synced_before = self.state() == ResourceState::Synced;
            let interrupted = self.follow().await;
            was_complete |= self.state() == ResourceState::Synced;
            if synced_before {
                wait = BACKOFF.0;
            }
            match interrupted {
                Interrupted::Missing(message) => {
                    self.forget();
                    self.set_state(ResourceState::Denied, &message);
                    return was_complete;
                }
                Interrupted::Denied(message) => {
                    self.forget();
                    self.set_state(ResourceState::Denied, &message);
                    sleep(LOOK_AGAIN).await;
                }
                Interrupted::TooMany(exceeded) => {
                    let objects = self.count().await;
                    self.loader.cache.write(|graph| graph.count_only(self.resource, objects, &exceeded));
                    self.set_state(ResourceState::CountedOnly, &exceeded.message);
                    sleep(LOOK_AGAIN).await;
                }
                Interrupted::Failed(message) => {
                    self.set_state(ResourceState::Failing, &message);
                    sleep(wait.mul_f64(rand::random_range(0.8..1.2))).await;
                    wait = (wait * 2).min(BACKOFF.1);
                }
            }
        }
    }

    /// Follows the resource until something is in the way.
    async fn follow(&self) -> Interrupted {
        // Held until the first list is complete, so that few pages are in memory.
        let mut permit = Some(self.acquire().await);
        if let Err(interrupted) = self.probe().await {
            return interrupted;
        }
        let mut stream = self.events();
        let mut round = 0;
        let is_event = self.api.kind == "Event";
        while let Some(event) = stream.next().await {
            let now = time::now();
            match event {
                Ok(Event::Init) => {
                    round = self.loader.cache.write(|graph| graph.begin_list(self.resource));
                }
                Ok(Event::InitApply(mut object) | Event::Apply(mut object)) => {
                    let applied = self.write(|graph| {
                        if is_event {
                            graph.apply_event(&object);
                            return Ok(());
                        }
                        graph.apply(self.resource, &mut object, now)
                    });
                    if let Err(exceeded) = applied {
                        return Interrupted::TooMany(exceeded);
                    }
                }
                Ok(Event::Delete(object)) => self.write(|graph| {
                    if is_event {
                        graph.delete_event(&object);
                    } else {
                        graph.delete(self.resource, &object);
                    }
                }),
                Ok(Event::InitDone) => {
                    permit = None;
                    self.write(|graph| graph.end_list(self.resource, &self.namespace, round));
                    self.set_state(ResourceState::Synced, "");
                }
                Err(error) => {
                    let denied = status_of(&error).is_some_and(|code| code == 403);
                    let message = describe(&error);
                    if denied {
                        return Interrupted::Denied(message);
                    }
                    if permit.is_some() {
                        return Interrupted::Failed(message);
                    }
                    // The watcher continues by itself. A watch that ends now and then is no failure.
                    tracing::debug!(
                        kind = self.api.kind,
                        error = message,
                        "a watch of the graph was interrupted"
                    );
                    if status_of(&error) != Some(410) {
                        sleep(BACKOFF.0.mul_f64(rand::random_range(0.5..1.5))).await;
                        if let Err(interrupted) = self.probe().await {
                            return interrupted;
                        }
                    }
                }
            }
        }
        Interrupted::Failed("the watch has ended".to_owned())
    }

    /// Changes the objects of the resource. A definition that has changed may be that of a kind which is loaded.
    fn write<T>(&self, write: impl FnOnce(&mut Graph) -> T) -> T {
        let (result, has_changed) = self.loader.cache.write(|graph| {
            let before = graph.sequence();
            (write(graph), graph.sequence() != before)
        });
        if has_changed && resources::defines_kinds(&self.api.group, &self.api.kind) {
            self.loader.definitions.notify_one();
        }
        result
    }

    /// Lists one object, which is the truth about what agentk may list.
    async fn probe(&self) -> Result<(), Interrupted> {
        match self.first().await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) => Err(match status.code {
                401 | 403 => Interrupted::Denied(status.message.clone()),
                404 | 405 => Interrupted::Missing("the API server does not list them any more".to_owned()),
                _ => Interrupted::Failed(status.message.clone()),
            }),
            Err(error) => Err(Interrupted::Failed(error.to_string())),
        }
    }

    /// Returns the number of objects that the API server has.
    async fn count(&self) -> usize {
        self.first().await.unwrap_or(0)
    }

    /// Lists one object. Returns the number of all.
    async fn first(&self) -> Result<usize, kube::Error> {
        fn number<K: Clone>(list: ObjectList<K>) -> usize {
            let remaining = list.metadata.remaining_item_count.unwrap_or(0);
            list.items.len() + usize::try_from(remaining).unwrap_or(0)
        }
        let one = ListParams::default().limit(1);
        match self.contents {
            Contents::Metadata => {
                self.objects::<PartialObjectMeta<TrimmedObject>>().list(&one).await.map(number)
            }
            Contents::KnownFields | Contents::AllFields => {
                self.objects::<TrimmedObject>().list(&one).await.map(number)
            }
        }
    }

    /// Lists and watches the objects.
    fn events(&self) -> BoxStream<'static, Result<Event<Value>, watcher::Error>> {
        let config = self.watch_config();
        match self.contents {
            Contents::KnownFields => {
                let events = watcher(self.objects::<TrimmedObject>(), config);
                events.map_ok(|event| each(event, |object| object.object)).boxed()
            }
            Contents::AllFields => {
                let events = watcher(self.objects::<WholeObject>(), config);
                events.map_ok(|event| each(event, |object| object.0.object)).boxed()
            }
            Contents::Metadata => {
                let events = watcher(self.objects::<PartialObjectMeta<TrimmedObject>>(), config);
                events.map_ok(|event| each(event, |object| object::of_metadata(&object.metadata))).boxed()
            }
        }
    }

    fn objects<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
    {
        let client = self.loader.cache.config().client.clone();
        match &*self.namespace {
            "" => Api::all_with(client, &self.api),
            namespace => Api::namespaced_with(client, namespace, &self.api),
        }
    }

    fn watch_config(&self) -> watcher::Config {
        let mut config =
            watcher::Config::default().page_size(PAGE).timeout(rand::random_range(WATCH_SECONDS));
        if self.loader.streaming {
            config.initial_list_strategy = InitialListStrategy::StreamingList;
        }
        if self.api.kind == "Event" { config.fields("type=Warning") } else { config }
    }

    async fn acquire(&self) -> OwnedSemaphorePermit {
        let lists = Arc::clone(&self.loader.lists);
        lists.acquire_owned().await.expect("the semaphore is never closed")
    }

    fn state(&self) -> ResourceState {
        self.states.lock().get(&self.namespace).map_or(ResourceState::Loading, |state| state.0)
    }

    /// Deletes all objects of the load, because agentk may not see them any more.
    fn forget(&self) {
        self.loader.cache.write(|graph| {
            let round = graph.begin_list(self.resource);
            graph.end_list(self.resource, &self.namespace, round);
        });
    }

    /// Sets the state of the load, and that of the resource, which has one load for each namespace.
    fn set_state(&self, state: ResourceState, message: &str) {
        let (state, message) = {
            let mut states = self.states.lock();
            states.insert(self.namespace.clone(), (state, message.to_owned()));
            combine(&states)
        };
        self.loader.cache.write(|graph| graph.set_state(self.resource, state, &message));
    }
}

fn each<K>(event: Event<K>, object: impl FnOnce(K) -> Value) -> Event<Value> {
    match event {
        Event::Apply(found) => Event::Apply(object(found)),
        Event::Delete(found) => Event::Delete(object(found)),
        Event::Init => Event::Init,
        Event::InitApply(found) => Event::InitApply(object(found)),
        Event::InitDone => Event::InitDone,
    }
}

/// The state of a resource from those of its namespaces.
fn combine(states: &BTreeMap<String, LoadState>) -> LoadState {
    let worst = [ResourceState::Loading, ResourceState::CountedOnly, ResourceState::Failing];
    for state in worst {
        if let Some(found) = states.values().find(|known| known.0 == state) {
            return found.clone();
        }
    }
    if let Some(all) = states.get("") {
        return all.clone();
    }
    let synced = |known: &&LoadState| known.0 == ResourceState::Synced;
    if !states.values().any(|known| synced(&known)) {
        let first = states.values().next().map_or("", |known| &known.1);
        return (ResourceState::Denied, first.to_owned());
    }
    let names = states.iter().filter(|(_, known)| synced(known)).map(|(name, _)| name.as_str());
    let names: Vec<&str> = names.take(10).collect();
    (ResourceState::DeniedInSome, format!("agentk may list them in {}", names.join(", ")))
}

fn status_of(error: &watcher::Error) -> Option<u16> {
    use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => match error {
            kube::Error::Api(status) => Some(status.code),
            _ => None,
        },
        WatchError(status) => Some(status.code),
        NoResourceVersion => None,
    }
}

/// Returns the words of the API server, or those of kube-rs.
fn describe(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => match error {
            kube::Error::Api(status) => status.message.clone(),
            error => error.to_string(),
        },
        WatchError(status) => status.message.clone(),
        NoResourceVersion => error.to_string(),
    }
}
