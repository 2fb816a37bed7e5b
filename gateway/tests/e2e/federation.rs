//! Prometheus as a client: one that federates through kas, and one that reads from afar (item 67 of the fault list).

use std::fs;

use secrecy::ExposeSecret as _;
use serde_json::json;

use crate::support::{AGENT, Prometheus, Server, World, curl, eventually};

/// In the first Prometheus, and not federated.
const ONLY_AFAR: &str = "scrape_samples_scraped";

#[test]
fn a_federating_prometheus_obtains_the_series() {
    let Some(prometheus) = Prometheus::or_skip() else { return };
    let world = World::of_prometheus(&prometheus.url);
    let token = world.tokens.ops.expose_secret();
    let (path, address) = (format!("/agents/{AGENT}/prometheus"), world.kas.public);
    let config = json!({
        "scrape_configs": [{
            "job_name": "federate",
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "honor_labels": true,
            "metrics_path": format!("{path}/federate"),
            "params": {"match[]": ["up{job=\"self\"}"]},
            "authorization": {"credentials": token},
            "static_configs": [{"targets": [address.to_string()]}],
        }],
        "remote_read": [{
            "url": format!("http://{address}{path}/api/v1/read"),
            "authorization": {"credentials": token},
            "read_recent": true,
        }],
    });
    // JSON is YAML.
    let second = Server::start(&config.to_string());
    let target = "up%7Bjob%3D%22federate%22%7D";
    eventually("the federation is scraped", || {
        let answer = second.answer(&format!("/api/v1/query?query={target}"));
        answer["data"]["result"][0]["value"][1] == "1"
    });
    let labels = second.answer("/api/v1/targets/metadata?match_target=%7Bjob%3D%22federate%22%7D");
    let federated: Vec<_> = labels["data"].as_array().unwrap().iter().map(|entry| &entry["metric"]).collect();
    assert!(federated.iter().any(|metric| **metric == "up"), "{labels}");

    let query = format!("/api/v1/query?query={ONLY_AFAR}&time={}", prometheus.time);
    let read = second.answer(&query);
    assert_eq!(read, prometheus.answer(&query), "by remote read");
    assert_eq!(read["data"]["result"][0]["metric"]["job"], "self");
}

#[test]
fn what_federates_and_what_is_read_is_the_same_byte_for_byte() {
    let Some(prometheus) = Prometheus::or_skip() else { return };
    let world = World::of_prometheus(&prometheus.url);
    let through = |path: &str| format!("/agents/{AGENT}/prometheus{path}");

    // Without its last column, the time, which is another at each scrape.
    let untimed = |text: String| {
        let lines = text.lines().map(|line| line.rsplit_once(' ').map_or(line, |(line, _)| line).to_owned());
        lines.collect::<Vec<_>>()
    };
    let path = "/federate?match[]=prometheus_build_info&match[]=up";
    let direct = curl(&["--globoff", &format!("{}{path}", prometheus.url)]);
    let reply = world.curl(&through(path), &["--globoff"]);
    assert_eq!((reply.status, direct.status), (200, 200));
    assert_eq!(reply.header("content-type"), direct.header("content-type"));
    assert!(direct.text().contains("up{instance="), "there is something to compare");
    assert_eq!(untimed(reply.text()), untimed(direct.text()));

    let end = (prometheus.time * 1000.0) as u64;
    for response_type in [SAMPLES, STREAMED_XOR_CHUNKS] {
        let file = world.directory().join("read");
        fs::write(&file, snappy(&read_request(ONLY_AFAR, end - 1000, end, response_type))).unwrap();
        let body = format!("@{}", file.display());
        let headers = ["Content-Type: application/x-protobuf", "Content-Encoding: snappy"];
        let mut post = vec!["--data-binary", &body, "--header", "X-Prometheus-Remote-Read-Version: 0.1.0"];
        post.extend(headers.iter().flat_map(|header| ["--header", header]));
        let url = format!("{}/api/v1/read", prometheus.url);
        let direct = curl(&[&[&*url], &post[..]].concat());
        let reply = world.curl(&through("/api/v1/read"), &post);
        assert_eq!((reply.status, direct.status), (200, 200), "{}", direct.text());
        for header in ["content-type", "content-encoding"] {
            assert_eq!(reply.header(header), direct.header(header), "{header}");
        }
        let streamed = direct.header("content-type").unwrap().contains("ChunkedReadResponse");
        assert_eq!(streamed, response_type == STREAMED_XOR_CHUNKS);
        assert!(direct.body.len() > 50, "there is something to compare");
        assert_eq!(reply.body, direct.body);
    }
}

const SAMPLES: u8 = 0;
const STREAMED_XOR_CHUNKS: u8 = 1;

/// A `ReadRequest` (prometheus/prompb/remote.proto) for one metric, in milliseconds.
fn read_request(metric: &str, start: u64, end: u64, response_type: u8) -> Vec<u8> {
    let matcher = [field(2, b"__name__"), field(3, metric.as_bytes())].concat();
    let query = [vec![1 << 3], varint(start), vec![2 << 3], varint(end), field(3, &matcher)].concat();
    [field(1, &query), vec![2 << 3, response_type]].concat()
}

/// A field whose wire type is "length-delimited".
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [vec![number << 3 | 2], varint(bytes.len() as u64), bytes.to_vec()].concat()
}

/// One literal: the format asks for no compression (google/snappy, format_description.txt).
fn snappy(bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len() - 1).unwrap();
    [varint(bytes.len() as u64), vec![60 << 2, length], bytes.to_vec()].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}
