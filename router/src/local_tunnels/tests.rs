use super::*;

const AGENT: AgentId = AgentId(7);

fn service(name: &str) -> ServiceName {
    name.parse().unwrap()
}

fn table() -> Arc<LocalTunnels<u8>> {
    Arc::new(LocalTunnels::new(3))
}

fn register(tunnels: &Arc<LocalTunnels<u8>>, handle: u8) -> RegistrationGuard<u8> {
    tunnels.register(AGENT, TunnelId::random(), vec![service("kubernetes")], handle, None)
}

fn choose(tunnels: &LocalTunnels<u8>, tried: &[TunnelId]) -> Option<RequestPermit<u8>> {
    match tunnels.choose(AGENT, &service("kubernetes"), RequestClass::Short, tried, None) {
        TunnelChoice::Tunnel(permit) => Some(permit),
        TunnelChoice::NotServed(_) | TunnelChoice::NoTunnel | TunnelChoice::LimitReached => None,
    }
}

#[test]
fn tunnel_is_available_while_registered() {
    let tunnels = table();
    assert!(choose(&tunnels, &[]).is_none());
    let registration = register(&tunnels, 1);
    assert_eq!(*choose(&tunnels, &[]).unwrap().handle(), 1);
    drop(registration);
    assert!(choose(&tunnels, &[]).is_none());
    assert!(!tunnels.contains(AGENT));
}

#[test]
fn requests_spread_by_load() {
    let tunnels = table();
    let _registrations = [register(&tunnels, 1), register(&tunnels, 2)];
    let first = choose(&tunnels, &[]).unwrap();
    let second = choose(&tunnels, &[]).unwrap();
    assert_ne!(first.handle(), second.handle());
    let free = *first.handle();
    drop(first);
    assert_eq!(*choose(&tunnels, &[]).unwrap().handle(), free);
}

#[test]
fn tried_tunnels_are_skipped_and_draining_ones_are_last() {
    let tunnels = table();
    let (a, _b) = (register(&tunnels, 1), register(&tunnels, 2));
    a.drain();
    let permit = choose(&tunnels, &[]).unwrap();
    assert_eq!(*permit.handle(), 2);
    let second = choose(&tunnels, &[permit.tunnel()]).unwrap();
    assert_eq!(*second.handle(), 1, "a draining tunnel is used if there is no other");
    assert!(choose(&tunnels, &[permit.tunnel(), second.tunnel()]).is_none());
}

#[test]
fn unserved_service_returns_served_ones() {
    let tunnels = table();
    let _registration = register(&tunnels, 1);
    match tunnels.choose(AGENT, &service("prometheus"), RequestClass::Short, &[], None) {
        TunnelChoice::NotServed(served) => assert_eq!(served, [service("kubernetes")]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn views_show_requests_in_flight_by_service() {
    let tunnels = table();
    let both = vec![service("kubernetes"), service("prometheus")];
    let a = tunnels.register(AGENT, TunnelId::random(), both, 1, None);
    let _b = tunnels.register(AgentId(8), TunnelId::random(), vec![], 2, None);
    let TunnelChoice::Tunnel(_watch) =
        tunnels.choose(AGENT, &service("prometheus"), RequestClass::Streaming, &[], None)
    else {
        panic!("there is a tunnel");
    };
    let _get = choose(&tunnels, &[]).unwrap();
    a.drain();

    let mut views = tunnels.views();
    views.sort_by_key(|view| view.agent);
    assert_eq!(views.iter().map(|view| *view.handle()).collect::<Vec<_>>(), [1, 2]);
    assert!(views[0].is_draining() && !views[1].is_draining());
    let seen: Vec<_> = views[0].services().map(|(name, now)| (name.as_str(), now)).collect();
    let (short, long) = (RequestsInFlight { short: 1, long: 0 }, RequestsInFlight { short: 0, long: 1 });
    assert_eq!(seen, [("kubernetes", short), ("prometheus", long)]);
    let of = |agent| tunnels.views_of(agent).iter().map(|view| *view.handle()).collect::<Vec<_>>();
    assert_eq!((of(AGENT), of(AgentId(8)), of(AgentId(9))), (vec![1], vec![2], vec![]));
}

#[test]
fn requests_in_flight_to_an_agent_are_limited() {
    let tunnels = table();
    let _registrations = [register(&tunnels, 1), register(&tunnels, 2)];
    let mut permits: Vec<_> = (0..3).map(|_| choose(&tunnels, &[]).unwrap()).collect();
    let busy = tunnels.choose(AGENT, &service("kubernetes"), RequestClass::Streaming, &[], None);
    assert!(matches!(busy, TunnelChoice::LimitReached));
    permits.pop();
    assert!(choose(&tunnels, &[]).is_some());
}

#[tokio::test(start_paused = true)]
async fn registration_wakes_waiters_of_its_agent_only() {
    let tunnels = table();
    let own = tunnels.registered(AGENT);
    let other = tunnels.registered(AgentId(8));
    let _registration = register(&tunnels, 1);
    own.await;
    let waited = tokio::time::timeout(std::time::Duration::from_secs(1), other).await;
    assert!(waited.is_err());
}

const fn load(short: u32, long: u32) -> TunnelLoad {
    TunnelLoad { short, long, draining: false, on_other_core: false }
}

fn least(loads: &[TunnelLoad], start: usize) -> Option<usize> {
    least_loaded(loads.iter().copied().map(Some), start)
}

#[test]
fn no_candidates_is_none() {
    assert_eq!(least(&[], 7), None);
}

#[test]
fn least_loaded_wins_and_long_streams_cost_more() {
    assert_eq!(least(&[load(3, 0), load(0, 1), load(2, 0)], 0), Some(2));
    assert_eq!(least(&[load(5, 0), load(0, 1)], 0), Some(1));
}

#[test]
fn draining_tunnel_is_last() {
    let draining = TunnelLoad { draining: true, ..load(0, 0) };
    assert_eq!(least(&[draining, load(99, 9)], 0), Some(1));
    assert_eq!(least(&[draining], 0), Some(0));
}

#[test]
fn equal_loads_take_turns() {
    let equals = [load(1, 0); 3];
    assert_eq!([0, 1, 2, 3].map(|start| least(&equals, start).unwrap()), [0, 1, 2, 0]);
    assert!(least(&equals, usize::MAX).is_some());
}

#[test]
fn tunnel_on_other_core_needs_much_less_load() {
    let on_other_core = |load| TunnelLoad { on_other_core: true, ..load };
    assert_eq!(least(&[on_other_core(load(0, 0)), load(9, 0)], 0), Some(0));
    assert_eq!(least(&[on_other_core(load(0, 0)), load(7, 0)], 0), Some(1));
    assert_eq!(least(&[on_other_core(load(20, 0)), load(47, 0)], 0), Some(1));
    assert_eq!(least(&[on_other_core(load(20, 0)), load(49, 0)], 0), Some(0));
    assert_eq!(least(&[on_other_core(load(0, 0)), load(0, 3)], 0), Some(0), "bulk on the local tunnel");
    assert_eq!(least(&[on_other_core(load(3, 0)), on_other_core(load(1, 0))], 0), Some(1), "no local tunnel");
}

#[test]
fn excluded_tunnel_is_skipped() {
    let loads = [None, Some(load(9, 0)), None];
    assert_eq!(least_loaded(loads.into_iter(), 2), Some(1));
    assert_eq!(least_loaded([None].into_iter(), 0), None);
}
