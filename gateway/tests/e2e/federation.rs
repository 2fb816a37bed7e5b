//! Prometheus as a client: federation and remote read through kas.

use std::fs;

use secrecy::ExposeSecret as _;
use serde_json::json;

use crate::support::{AGENT, Installation, Prometheus, PrometheusServer, curl, eventually};

/// A metric of the first Prometheus that is not federated.
const NOT_FEDERATED: &str = "scrape_samples_scraped";

#[test]
fn federating_prometheus_receives_the_series() {
    let Some(prometheus) = Prometheus::or_skip() else { return };
    let world = Installation::with_prometheus(&prometheus.url);
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
    // JSON is valid YAML.
    let second = PrometheusServer::start(&config.to_string());
    let target = "up%7Bjob%3D%22federate%22%7D";
    eventually("the federation is scraped", || {
        let response = second.get_json(&format!("/api/v1/query?query={target}"));
        response["data"]["result"][0]["value"][1] == "1"
    });
    let labels = second.get_json("/api/v1/targets/metadata?match_target=%7Bjob%3D%22federate%22%7D");
    let federated: Vec<_> = labels["data"].as_array().unwrap().iter().map(|entry| &entry["metric"]).collect();
    assert!(federated.iter().any(|metric| **metric == "up"), "{labels}");

    let query = format!("/api/v1/query?query={NOT_FEDERATED}&time={}", prometheus.time);
    let read = second.get_json(&query);
    assert_eq!(read, prometheus.get_json(&query), "remote read returns the same");
    assert_eq!(read["data"]["result"][0]["metric"]["job"], "self");
}

#[test]
fn federation_and_remote_read_are_unchanged() {
    let Some(prometheus) = Prometheus::or_skip() else { return };
    let world = Installation::with_prometheus(&prometheus.url);
    let through = |path: &str| format!("/agents/{AGENT}/prometheus{path}");

    // The last column is the time, which differs at each scrape.
    let untimed = |text: String| {
        let lines = text.lines().map(|line| line.rsplit_once(' ').map_or(line, |(line, _)| line).to_owned());
        lines.collect::<Vec<_>>()
    };
    let path = "/federate?match[]=prometheus_build_info&match[]=up";
    let direct = curl(&["--globoff", &format!("{}{path}", prometheus.url)]);
    let response = world.curl(&through(path), &["--globoff"]);
    assert_eq!((response.status, direct.status), (200, 200));
    assert_eq!(response.header("content-type"), direct.header("content-type"));
    assert!(direct.text().contains("up{instance="), "the response is not empty");
    assert_eq!(untimed(response.text()), untimed(direct.text()));

    let end = (prometheus.time * 1000.0) as u64;
    for response_type in [SAMPLES, STREAMED_XOR_CHUNKS] {
        let file = world.directory().join("read");
        fs::write(&file, snappy(&read_request(NOT_FEDERATED, end - 1000, end, response_type))).unwrap();
        let body = format!("@{}", file.display());
        let headers = ["Content-Type: application/x-protobuf", "Content-Encoding: snappy"];
        let mut post = vec!["--data-binary", &body, "--header", "X-Prometheus-Remote-Read-Version: 0.1.0"];
        post.extend(headers.iter().flat_map(|header| ["--header", header]));
        let url = format!("{}/api/v1/read", prometheus.url);
        let direct = curl(&[&[&*url], &post[..]].concat());
        let response = world.curl(&through("/api/v1/read"), &post);
        assert_eq!((response.status, direct.status), (200, 200), "{}", direct.text());
        for header in ["content-type", "content-encoding"] {
            assert_eq!(response.header(header), direct.header(header), "{header}");
        }
        let streamed = direct.header("content-type").unwrap().contains("ChunkedReadResponse");
        assert_eq!(streamed, response_type == STREAMED_XOR_CHUNKS);
        assert!(direct.body.len() > 50, "the response is not empty");
        assert_eq!(response.body, direct.body);
    }
}

const SAMPLES: u8 = 0;
const STREAMED_XOR_CHUNKS: u8 = 1;

/// Encodes a `ReadRequest` (prometheus/prompb/remote.proto) for one metric, with times in milliseconds.
fn read_request(metric: &str, start: u64, end: u64, response_type: u8) -> Vec<u8> {
    let matcher = [field(2, b"__name__"), field(3, metric.as_bytes())].concat();
    let query = [vec![1 << 3], varint(start), vec![2 << 3], varint(end), field(3, &matcher)].concat();
    [field(1, &query), vec![2 << 3, response_type]].concat()
}

/// Encodes a protobuf field with the wire type "length-delimited".
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [vec![number << 3 | 2], varint(bytes.len() as u64), bytes.to_vec()].concat()
}

/// Encodes bytes as one literal: the format does not require compression (google/snappy, format_description.txt).
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
