//! The messages of Hubble are generated.

#[test]
fn generated_messages_are_those_of_the_proto_file() {
    testing::protobuf::check(env!("CARGO_MANIFEST_DIR"), "hubble", &["hubble.GetFlowsResponse.content.flow"]);
}
