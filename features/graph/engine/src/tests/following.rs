//! Callers that follow the graph.

use std::collections::{BTreeMap, BTreeSet};

use proto::{
    InstanceId,
    graph::{GoneReason, GraphEvent, HealthState, Node, Token, WatchMode},
};
use serde_json::json;
use tokio::time::Instant;

use super::{NOW, World, object, owned, query_of};
use crate::{
    access::{Access, VisibleNamespaces},
    time::{self, wait_until},
    viewer::{Shown, Viewer},
};

/// A caller, with what it knows from the lines that it has read.
struct Reader {
    viewer: Viewer,
    known: BTreeMap<String, Node>,
    gone: Vec<(String, GoneReason)>,
    token: Option<Token>,
    modes: Vec<WatchMode>,
}

fn token(sequence: u64) -> Token {
    Token { instance: InstanceId::from_bytes([1; 16]), generation: 1, sequence }
}

impl Reader {
    fn new(world: &World, query: &str, access: Access) -> Self {
        Self::since(world, query, access, None)
    }

    fn since(world: &World, query: &str, access: Access, since: Option<(Token, bool)>) -> Self {
        let (viewer, begin) = Viewer::new(&world.graph, query_of(query), Shown::Objects, access, since);
        let mut reader =
            Self { viewer, known: BTreeMap::new(), gone: Vec::new(), token: None, modes: Vec::new() };
        reader.read(vec![begin]);
        reader
    }

    fn read(&mut self, events: Vec<GraphEvent>) {
        for event in events {
            match event {
                GraphEvent::Begin { mode } => {
                    self.modes.push(mode);
                    if mode == WatchMode::Reset {
                        self.known.clear();
                    }
                }
                GraphEvent::Node { node } => drop(self.known.insert(node.uid.clone(), *node)),
                GraphEvent::Gone { uid, reason } => {
                    self.known.remove(&uid);
                    self.gone.push((uid, reason));
                }
                GraphEvent::Commit { token } => self.token = Some(token),
                GraphEvent::State { .. }
                | GraphEvent::Groups { .. }
                | GraphEvent::Views { .. }
                | GraphEvent::Alive {} => {}
            }
        }
    }

    /// Reads all lines. Returns the number of batches.
    fn catch_up(&mut self, world: &World) -> usize {
        for batch in 0.. {
            let events = self.viewer.next(&world.graph, token, NOW);
            if events.is_empty() {
                return batch;
            }
            self.read(events);
        }
        unreachable!("the loop returns")
    }

    fn names(&self) -> Vec<&str> {
        self.known.values().map(|node| &*node.name).collect()
    }
}

/// Asserts that a reader knows exactly what a fresh list has.
fn assert_equals_list(world: &World, query: &str, access: &Access, reader: &Reader, what: &str) {
    let list = world.graph.objects(&query_of(query), access, usize::MAX, None).objects;
    let expected: BTreeMap<String, Node> = list.into_iter().map(|node| (node.uid.clone(), node)).collect();
    let missing: Vec<_> = expected.keys().filter(|uid| !reader.known.contains_key(*uid)).collect();
    let extra: Vec<_> = reader.known.keys().filter(|uid| !expected.contains_key(*uid)).collect();
    assert!(missing.is_empty() && extra.is_empty(), "{what}: missing {missing:?}, extra {extra:?}");
    for (uid, node) in &expected {
        assert_eq!(&reader.known[uid], node, "{what}: {uid}");
    }
}

#[test]
fn snapshot_then_changes() {
    let mut world = World::new();
    world.add_deployment("web");
    let mut reader = Reader::new(&world, "", Access::of_agent());
    reader.catch_up(&world);
    assert_eq!((reader.known.len(), reader.modes.as_slice()), (3, &[WatchMode::Snapshot][..]));
    let first = reader.token.unwrap();

    world.apply(object("v1", "ConfigMap", "new", &json!({})));
    world.delete("v1", "Pod", "web-1-x");
    reader.catch_up(&world);
    assert_eq!(reader.gone, [("Pod/web-1-x".to_owned(), GoneReason::Deleted)]);
    assert!(reader.token.unwrap().sequence > first.sequence);
    assert_eq!(reader.catch_up(&world), 0, "nothing is sent while nothing changes");
}

#[test]
fn change_of_other_fields_is_no_change() {
    let mut world = World::new();
    world.apply(object("v1", "ConfigMap", "a", &json!({})));
    let mut reader = Reader::new(&world, "", Access::of_agent());
    reader.catch_up(&world);
    world.apply(object(
        "v1",
        "ConfigMap",
        "a",
        &json!({"data": {"key": "value"}, "metadata": {"resourceVersion": "7"}}),
    ));
    assert_eq!(reader.catch_up(&world), 0);
}

#[test]
fn slow_reader_gets_each_object_once() {
    let mut world = World::new();
    world.apply(object("v1", "ConfigMap", "a", &json!({})));
    let mut reader = Reader::new(&world, "", Access::of_agent());
    reader.catch_up(&world);
    for n in 0..10_000 {
        world.apply(object("v1", "ConfigMap", "a", &json!({"metadata": {"labels": {"n": n.to_string()}}})));
    }
    assert_eq!(reader.catch_up(&world), 1);
    assert_eq!(reader.known["ConfigMap/a"].labels["n"], "9999");
}

/// A reader that waits for a change between two batches would get the Pod only after many of them.
#[test]
fn objects_that_are_not_selected_delay_nothing() {
    let mut world = World::new();
    for n in 0..2000 {
        world.apply(object("v1", "ConfigMap", &format!("c{n}"), &json!({})));
    }
    world.apply(object("v1", "Pod", "last", &json!({})));
    let mut reader = Reader::new(&world, "kind=Pod", Access::of_agent());
    let events = reader.viewer.next(&world.graph, token, NOW);
    reader.read(events);
    assert_eq!((reader.names(), reader.token.unwrap().sequence), (vec!["last"], world.graph.sequence()));
}

#[test]
fn reader_continues_where_it_was() {
    let mut world = World::new();
    for n in 0..10 {
        world.apply(object("v1", "ConfigMap", &format!("c{n}"), &json!({})));
    }
    let mut before = Reader::new(&world, "", Access::of_agent());
    before.catch_up(&world);
    world.delete("v1", "ConfigMap", "c3");
    world.apply(object("v1", "ConfigMap", "c4", &json!({"metadata": {"labels": {"x": "y"}}})));

    let mut after = Reader::since(&world, "", Access::of_agent(), Some((before.token.unwrap(), true)));
    after.catch_up(&world);
    assert_eq!((after.modes.as_slice(), after.names()), (&[WatchMode::Delta][..], vec!["c4"]));
    assert_eq!(after.gone, [("ConfigMap/c3".to_owned(), GoneReason::Deleted)]);
    before.known.extend(after.known.clone());
    before.known.remove("ConfigMap/c3");
    assert_equals_list(&world, "", &Access::of_agent(), &before, "after the delta");
    let foreign = Reader::since(&world, "", Access::of_agent(), Some((before.token.unwrap(), false)));
    assert_eq!(foreign.modes, [WatchMode::Reset], "the token of another process");
    let future = Reader::since(&world, "", Access::of_agent(), Some((token(1 << 40), true)));
    assert_eq!(future.modes, [WatchMode::Reset], "a token that nobody was given");
}

#[test]
fn reader_that_missed_too_many_deletions_begins_anew() {
    let mut world = World::new();
    world.apply(object("v1", "ConfigMap", "kept", &json!({})));
    let mut slow = Reader::new(&world, "", Access::of_agent());
    slow.catch_up(&world);
    for n in 0..17_000 {
        let name = format!("c{n}");
        world.apply(object("v1", "ConfigMap", &name, &json!({})));
        world.delete("v1", "ConfigMap", &name);
    }
    let late = Reader::since(&world, "", Access::of_agent(), slow.token.map(|token| (token, true)));
    assert_eq!(late.modes, [WatchMode::Reset]);
    slow.catch_up(&world);
    assert_eq!(
        (slow.modes.as_slice(), slow.names()),
        (&[WatchMode::Snapshot, WatchMode::Reset][..], vec!["kept"])
    );
    // Many deletions before the snapshot do not matter.
    let mut fresh = Reader::new(&world, "", Access::of_agent());
    fresh.catch_up(&world);
    assert_eq!((fresh.modes.as_slice(), fresh.names()), (&[WatchMode::Snapshot][..], vec!["kept"]));
}

#[test]
fn object_leaves_the_view_when_the_query_does_not_select_it_any_more() {
    let mut world = World::new();
    let labelled = |value: &str| object("v1", "Pod", "p", &json!({"metadata": {"labels": {"app": value}}}));
    world.apply(labelled("web"));
    let mut reader = Reader::new(&world, "label=app=web", Access::of_agent());
    reader.catch_up(&world);
    assert_eq!(reader.names(), ["p"]);
    world.apply(labelled("other"));
    reader.catch_up(&world);
    assert_eq!(reader.gone, [("Pod/p".to_owned(), GoneReason::Filter)]);
}

#[test]
fn object_joins_a_group_when_its_owner_does() {
    let mut world = World::new();
    world.add_deployment("web");
    let group = "group=argocd:shop";
    let mut reader = Reader::new(&world, group, Access::of_agent());
    reader.catch_up(&world);
    assert!(reader.known.is_empty());
    let labelled = |value: &str| {
        object(
            "apps/v1",
            "Deployment",
            "web",
            &json!({"metadata": {"labels": {"argocd.argoproj.io/instance": value}}}),
        )
    };
    world.apply(labelled("shop"));
    reader.catch_up(&world);
    assert_eq!(reader.known.len(), 3, "the ReplicaSet and the Pod have not changed themselves");
    world.apply(labelled("other"));
    reader.catch_up(&world);
    assert!(reader.known.is_empty());
}

#[test]
fn lost_and_new_rights_change_the_view() {
    let mut world = World::new();
    world.add_deployment("web");
    world.apply(object("v1", "Pod", "elsewhere", &json!({"metadata": {"namespace": "b"}})));
    let pods = world.resource("v1", "Pod");
    let in_namespaces = |names: &[&str]| {
        let mut access = Access::default();
        access.allow(
            pods,
            VisibleNamespaces::Some(names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>()),
        );
        access
    };
    let mut reader = Reader::new(&world, "", in_namespaces(&["a"]));
    reader.catch_up(&world);
    assert_eq!(reader.names(), ["web-1-x"]);
    let events = reader.viewer.set_access(&world.graph, in_namespaces(&["b"]));
    reader.read(events);
    assert_eq!(reader.names(), ["elsewhere"]);
    assert_eq!(reader.gone, [("Pod/web-1-x".to_owned(), GoneReason::Permission)]);
    // A deletion of an object that the caller may not see any more is not reported.
    reader.gone.clear();
    world.delete("v1", "Pod", "web-1-x");
    reader.catch_up(&world);
    assert!(reader.gone.is_empty());
}

#[test]
fn pod_that_comes_and_goes_changes_the_service_that_selects_it() {
    let mut world = World::new();
    world.apply(object("v1", "Service", "web", &json!({"spec": {"selector": {"app": "web"}}})));
    let mut reader = Reader::new(&world, "kind=Service", Access::of_agent());
    reader.catch_up(&world);
    world.apply(object("v1", "Pod", "p", &json!({"metadata": {"labels": {"app": "web"}}})));
    reader.catch_up(&world);
    assert_eq!(reader.known["Service/web"].edges.len(), 1);
    world.delete("v1", "Pod", "p");
    reader.catch_up(&world);
    assert!(reader.known["Service/web"].edges.is_empty());
}

/// Nothing changes between the crash and the time at which it is reported.
#[tokio::test(start_paused = true)]
async fn group_is_degraded_once_an_object_was_for_long_enough() {
    let (mut world, now) = (World::new(), time::now());
    world.apply_at(object("v1", "Pod", "first", &json!({"status": {"phase": "Failed"}})), now - 20);
    world.apply_at(object("v1", "Pod", "later", &json!({"status": {"phase": "Failed"}})), now - 10);
    let query = query_of("degraded_after=60s");
    let (mut viewer, _) = Viewer::new(&world.graph, query, Shown::Groups, Access::of_agent(), None);
    let next = |viewer: &mut Viewer, now| {
        let changed = viewer.next(&world.graph, token, now).into_iter().find_map(|event| match event {
            GraphEvent::Groups { changed, .. } => Some(changed),
            _ => None,
        })?;
        Some((changed[0].health.health, changed[0].health.attention.len()))
    };
    assert_eq!(next(&mut viewer, now), Some((HealthState::Healthy, 0)));
    for (seconds, failed) in [(40, 1), (50, 2)] {
        assert_eq!(next(&mut viewer, now + seconds - 1), None);
        assert_eq!(viewer.due(), Some(now + seconds));
        let start = Instant::now();
        wait_until(viewer.due()).await;
        let waited = start.elapsed().as_secs();
        assert!((seconds as u64 - 1..=seconds as u64).contains(&waited), "{waited} s of {seconds}");
        assert_eq!(next(&mut viewer, now + seconds), Some((HealthState::Degraded, failed)));
    }
    assert_eq!(viewer.due(), Some(now + 580), "the first Pod is forgotten if something has replaced it");
}

/// After any changes, lists, losses and restarts, a reader knows what a fresh list has.
#[test]
fn view_equals_a_fresh_list_after_random_changes() {
    for seed in 0..60_u64 {
        let mut random = Random(seed * 7919 + 1);
        let mut world = World::new();
        let access = Access::of_agent();
        let query = ["", "namespace=a", "kind=Pod,Service", "label=app=web", "group=argocd:shop"]
            [(seed % 5) as usize];
        let mut reader = Reader::new(&world, query, access.clone());
        for step in 0..300 {
            let name = format!("o{}", random.below(12));
            let (api, kind) =
                [("v1", "Pod"), ("v1", "Service"), ("apps/v1", "ReplicaSet"), ("apps/v1", "Deployment")]
                    [random.below(4)];
            match random.below(10) {
                0..5 => {
                    let owner = format!("o{}", random.below(12));
                    let above = [("apps/v1", "ReplicaSet"), ("apps/v1", "Deployment")][random.below(2)];
                    let mut changed = owned(api, kind, &name, (above.0, above.1, &owner));
                    changed["metadata"]["labels"] =
                        json!({"app": random.app(), "n": random.below(3).to_string()});
                    if random.below(4) == 0 {
                        changed["metadata"]["labels"]["argocd.argoproj.io/instance"] = "shop".into();
                    }
                    if kind == "Service" {
                        changed["spec"] = json!({"selector": {"app": random.app()}});
                    }
                    if random.below(5) == 0 {
                        // Created again under the same name.
                        changed["metadata"]["uid"] = format!("{kind}/{name}/{}", random.below(3)).into();
                    }
                    world.apply(changed);
                }
                5..7 => world.delete(api, kind, &name),
                7 => {
                    // A list after 410 that misses some of the objects.
                    let resource = world.resource(api, kind);
                    let round = world.graph.begin_list(resource);
                    if random.below(2) == 0 {
                        world.apply(object(api, kind, &name, &json!({})));
                    }
                    world.graph.end_list(resource, "", round);
                }
                8 => drop(reader.catch_up(&world)),
                _ => {
                    reader.catch_up(&world);
                    assert_equals_list(&world, query, &access, &reader, &format!("seed {seed}, step {step}"));
                    if random.below(2) == 0 {
                        // The stream is cut, and the reader continues later with what it knows.
                        let (known, since) = (reader.known.clone(), reader.token.map(|token| (token, true)));
                        for n in 0..random.below(4) {
                            world.apply(object(
                                "v1",
                                "Pod",
                                &format!("o{n}"),
                                &json!({"metadata": {"labels": {"cut": step.to_string()}}}),
                            ));
                        }
                        reader = Reader::since(&world, query, access.clone(), since);
                        if reader.modes == [WatchMode::Delta] {
                            reader.known = known;
                        }
                    }
                }
            }
        }
        reader.catch_up(&world);
        assert_equals_list(&world, query, &access, &reader, &format!("seed {seed}, at the end"));
    }
}

/// A generator of numbers that are the same in each run (xorshift).
struct Random(u64);

impl Random {
    fn app(&mut self) -> &'static str {
        ["web", "db"][self.below(2)]
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}
