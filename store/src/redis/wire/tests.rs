use super::*;

fn heartbeat(url: &str) -> Heartbeat {
    Heartbeat {
        url: url.into(),
        fleet: "blue".into(),
        kas: "0.1.0".into(),
        started: 1_700_000_000,
        mac: None,
        tunnels: Some(7),
    }
}

fn instance(pod: &str) -> Instance {
    Instance {
        id: InstanceId::random(),
        reported: ReportedInfo {
            version: "0.1.0".into(),
            pod_namespace: Some("agentk".into()),
            pod_name: Some(pod.into()),
            kubernetes_version: None,
            cluster: Some("0b5c1e4f-6a0e-4b0e-9a53-1c6e1f0d2a7b".into()),
            scope: Some("cluster".into()),
        },
        since: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        tunnels: 2,
    }
}

#[test]
fn encoded_values_decode_to_the_same() {
    let heartbeat = heartbeat("https://10.0.0.1:8155");
    assert_eq!(Heartbeat::decode(heartbeat.encode().as_bytes()).unwrap(), heartbeat);
    let record = RouteRecord { epoch: Epoch(7), instances: vec![instance("a"), instance("b")] };
    assert_eq!(RouteRecord::decode(record.encode().as_bytes()).unwrap(), record);
    for kind in [
        RedisEventKind::Heartbeat(heartbeat),
        RedisEventKind::Changed(vec![AgentId(1), AgentId(u64::MAX)]),
        RedisEventKind::Pushed(vec![GitPush::new(7, "group/project").unwrap()]),
        RedisEventKind::Disabled,
        RedisEventKind::Logged,
        RedisEventKind::Left,
    ] {
        let event = RedisEvent { replica: ReplicaId::random(), generation: 3, sequence: 9, kind };
        assert_eq!(RedisEvent::decode(event.encode().as_bytes()).unwrap(), event);
    }
}

#[test]
fn record_format_is_stable() {
    let id = InstanceId::from_bytes([255; 16]);
    let mut instance = Instance { id, ..instance("a") };
    (instance.reported.cluster, instance.reported.scope) = (None, None);
    let record = RouteRecord { epoch: Epoch(7), instances: vec![instance] };
    let rest = "\"0.1.0\",\"agentk\",\"a\",null,1700000000,2]]]";
    assert_eq!(record.encode(), format!("[1,7,[[\"_____________________w\",{rest}"));
    let digits = format!("[1,7,[[\"{}\",{rest}", "f".repeat(32));
    assert_eq!(RouteRecord::decode(digits.as_bytes()).unwrap(), record);
}

#[test]
fn rows_of_older_and_newer_versions_are_decoded() {
    let id = "00000000000000000000000000000001";
    let row = |end: &str| {
        let text = format!("[1,5,[[\"{id}\",\"0.1.0\",null,null,null,1700000000,2{end}]]]");
        let reported = RouteRecord::decode(text.as_bytes()).unwrap().instances.remove(0).reported;
        (reported.cluster, reported.scope)
    };
    assert_eq!(row(""), (None, None));
    assert_eq!(row(",\"uid\""), (Some("uid".to_owned()), None));
    assert_eq!(row(",\"uid\",\"shop\",{\"new\":1},7"), (Some("uid".to_owned()), Some("shop".to_owned())));
}

#[test]
fn event_format_is_stable() {
    let replica = ReplicaId::random();
    let event = |kind| RedisEvent { replica, generation: 2, sequence: 3, kind }.encode();
    let head = format!("[1,\"{replica}\",2,3,");
    assert_eq!(event(RedisEventKind::Left), format!("{head}\"left\"]"));
    assert_eq!(event(RedisEventKind::Changed(vec![AgentId(7)])), format!("{head}{{\"changed\":[7]}}]"));
    let pushed = RedisEventKind::Pushed(vec![GitPush::new(7, "a/b").unwrap()]);
    assert_eq!(event(pushed), format!("{head}{{\"pushed\":[[7,\"a/b\"]]}}]"));
    let text = event(RedisEventKind::Heartbeat(heartbeat("https://a:1")));
    assert!(text.starts_with(&format!("{head}{{\"beat\":{{\"url\":\"https://a:1\"")), "{text}");
}

#[test]
fn invalid_record_is_rejected_with_its_reason() {
    let long = "9".repeat(MAX_RECORD + 1);
    let control = RouteRecord { epoch: Epoch(1), instances: vec![instance("a\nb")] }.encode();
    for (text, expected) in [
        ("", "does not begin with the version"),
        ("\u{0}\u{1}garbage", "does not begin with the version"),
        ("[ 1,5,[]]", "does not begin with the version"),
        ("[2,5,[]]", "version 2"),
        ("[99999999,5,[]]", "does not begin with the version"),
        ("[1,-5,[]]", "malformed"),
        ("[1,5,[[[[[", "malformed"),
        ("[1,5,[[\"x\",\"\",null,null,null,0,0]]]", "malformed"),
        (
            "[1,5,[[\"00000000000000000000000000000000\",\"\",null,null,null,18446744073709551615,0]]]",
            "texts",
        ),
        (&control, "control characters"),
        (&long, "longer than 2048 bytes"),
    ] {
        let error = RouteRecord::decode(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn heartbeat_url_is_scheme_host_and_port() {
    for good in ["http://10.0.0.1:8155", "https://kas-1.kas:8155", "https://[fd00::1]:8155/"] {
        assert!(Heartbeat::decode(heartbeat(good).encode().as_bytes()).is_ok(), "{good}");
    }
    for bad in [
        "",
        "kas-1:8155",
        "ftp://kas-1",
        "http://",
        "http://a b",
        "http://a/b",
        "http://a/?b",
        "http://u:p@a",
        "http://a#b",
    ] {
        let error = Heartbeat::decode(heartbeat(bad).encode().as_bytes()).unwrap_err();
        assert!(matches!(error, WireError::InvalidUrl), "{bad}: {error}");
    }
}

#[test]
fn record_drops_instances_beyond_its_limit() {
    let instances = (0..100).map(|n| instance(&format!("agentk-{n}"))).collect();
    let text = RouteRecord { epoch: Epoch(1), instances }.encode();
    assert!(text.len() <= MAX_RECORD);
    assert!(RouteRecord::decode(text.as_bytes()).unwrap().instances.len() > 10);
}

#[test]
fn project_is_bounded_and_its_names_are_checked() {
    let names = |count: u64| -> BTreeMap<AgentId, AgentName> {
        (0..count).map(|n| (AgentId(n), format!("agent-{n}").parse().unwrap())).collect()
    };
    let few = names(3);
    let decoded = decode_project(encode_project(&few).as_bytes()).unwrap();
    assert_eq!(decoded.into_iter().collect::<BTreeMap<_, _>>(), few);
    let text = encode_project(&names(10_000));
    assert!(text.len() <= MAX_PROJECT && decode_project(text.as_bytes()).unwrap().len() > 180);
    for bad in ["", "[2,[]]", "[1,[[7,\"A b\"]]]", "[1,[[-7,\"a\"]]]", "[1,[[[["] {
        assert!(decode_project(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn largest_event_fits() {
    let kind = RedisEventKind::Changed(vec![AgentId(u64::MAX); MAX_AGENTS]);
    let push = GitPush::new(u64::MAX, &"a".repeat(2048)).unwrap();
    for kind in [kind, RedisEventKind::Pushed(vec![push; MAX_PUSHES])] {
        let event =
            RedisEvent { replica: ReplicaId::random(), generation: u64::MAX, sequence: u64::MAX, kind };
        assert!(RedisEvent::decode(event.encode().as_bytes()).is_ok());
    }
}
