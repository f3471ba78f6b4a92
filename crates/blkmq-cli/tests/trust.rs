//! What `blkmq serve` shows to whom, and what it says of it.

mod served;

use served::Served;

/// Red if the line or the word is left out, or a device that keeps its data gets one.
#[test]
fn what_throws_data_away_says_so_at_the_start_and_in_the_list() {
    let exports = ["--export", "b=hdd,size=1G", "--export", "c=ssd,size=1G", "--export", "d=null,memory_backed=1"];
    let mut server = Served::start(&[&["--device", "null,size=1G"], &exports[..]].concat());
    let listed = server.json(&["list"]);
    let kept: Vec<_> = (0..4).map(|index| listed[0]["queues"][index]["keeps_data"].as_bool().unwrap()).collect();
    assert_eq!(kept, [false, false, false, true]);
    let list = server.say(&["list"]);
    assert!(list.contains("  default: null,size=1G, 1 GiB KEEPS NOTHING, scheduler "), "{list}");
    assert_eq!(list.matches("KEEPS NOTHING").count(), 3, "{list}");
    server.http(b"POST /stop HTTP/1.1\r\n\r\n");
    let (code, said) = server.end();
    assert_eq!((code, said.lines().count(), said.matches("NOTHING IS KEPT").count()), (Some(0), 3, 3), "{said}");
    assert!(said.starts_with("blkmq: default: null,size=1G THROWS AWAY WHAT IS WRITTEN. NOTHING IS KEPT"), "{said}");
}
