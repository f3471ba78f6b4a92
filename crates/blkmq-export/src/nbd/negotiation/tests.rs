use super::super::{OptionReply, option};
use super::*;

fn offers() -> Arc<[Offer]> {
    let offer = |name: &str, size| Offer {
        name: name.into(),
        description: format!("about {name}"),
        size,
        flags: transmission::HAS_FLAGS,
        preferred: 4096,
        maximum: 1 << 20,
    };
    [offer("", 1 << 20), offer("disk", 4096)].into()
}

/// The agreement with a client that chooses "disk".
fn on_disk(has_structured_replies: bool, has_allocation: bool) -> Agreement {
    Agreement { export: 1, offer: offers().offer(1), has_structured_replies, has_allocation }
}

/// A negotiation to which the client's flags were sent.
fn begun(flags: u32) -> Negotiation<[Offer]> {
    begun_with(Encryption::Off, flags)
}

fn begun_with(encryption: Encryption, flags: u32) -> Negotiation<[Offer]> {
    let mut output = Vec::new();
    let mut negotiation = Negotiation::begin(offers(), encryption, &mut output);
    assert_eq!(output, b"NBDMAGICIHAVEOPT\0\x03");
    assert_eq!(negotiation.advance(&flags.to_be_bytes(), &mut output), (4, Progress::On));
    negotiation
}

fn named(name: &str, rest: &[u8]) -> Vec<u8> {
    [&string(name), rest].concat()
}

/// The replies in the output: type and data.
fn replies(mut output: &[u8], option: u32) -> Vec<(u32, Vec<u8>)> {
    let mut replies = Vec::new();
    while let Some((head, rest)) = output.split_first_chunk() {
        let reply = OptionReply::decode(head).unwrap();
        assert_eq!(reply.option, option);
        let (data, rest) = rest.split_at(reply.len as usize);
        replies.push((reply.kind, data.to_vec()));
        output = rest;
    }
    replies
}

fn ask(negotiation: &mut Negotiation<[Offer]>, number: u32, data: &[u8]) -> (Progress, Vec<(u32, Vec<u8>)>) {
    let (input, mut output) = (option(number, data), Vec::new());
    let (used, step) = negotiation.advance(&input, &mut output);
    assert_eq!(used, input.len());
    (step, replies(&output, number))
}

/// The type of the only reply.
fn only(negotiation: &mut Negotiation<[Offer]>, number: u32, data: &[u8]) -> u32 {
    let (step, replies) = ask(negotiation, number, data);
    assert_eq!((step, replies.len()), (Progress::On, 1));
    replies[0].0
}

#[test]
fn unknown_flags_and_magics_break_it() {
    let mut output = Vec::new();
    let mut negotiation = Negotiation::begin(offers(), Encryption::Off, &mut output);
    assert!(matches!(negotiation.advance(&[0, 0, 0, 4], &mut output), (4, Progress::Broken(_))));
    assert!(matches!(negotiation.advance(&[0, 0, 0, 0], &mut output), (0, Progress::Broken(_))), "it stays over");
    let mut negotiation = begun(3);
    assert!(matches!(negotiation.advance(&[0; 16], &mut output), (16, Progress::Broken(_))));
}

#[test]
fn nothing_is_used_before_an_option_is_whole() {
    let mut negotiation = begun(3);
    let (input, mut output) = (option(options::GO, &named("disk", &[0, 0])), Vec::new());
    for len in 0..input.len() {
        assert_eq!(negotiation.advance(&input[..len], &mut output), (0, Progress::Short));
    }
    assert!(matches!(negotiation.advance(&input, &mut output), (_, Progress::Chosen(_))));
}

#[test]
fn export_name_ends_it_with_or_without_zeroes() {
    for (flags, length) in [(0, 10 + 124), (1, 10 + 124), (2, 10), (3, 10)] {
        let (mut negotiation, mut output) = (begun(flags), Vec::new());
        let (_, step) = negotiation.advance(&option(options::EXPORT_NAME, b"disk"), &mut output);
        let agreement = on_disk(false, false);
        assert_eq!(step, Progress::Chosen(agreement));
        assert_eq!(output.len(), length);
        assert_eq!(output[..10], [0, 0, 0, 0, 0, 0, 16, 0, 0, 1]);
    }
    let (step, replies) = ask(&mut begun(3), options::EXPORT_NAME, b"nothing");
    assert!(matches!(step, Progress::Broken(_)) && replies.is_empty());
}

#[test]
fn a_list_names_every_export() {
    let (step, replies) = ask(&mut begun(3), options::LIST, &[]);
    let expected = [
        (option_replies::SERVER, named("", b"about ")),
        (option_replies::SERVER, named("disk", b"about disk")),
        (option_replies::ACK, vec![]),
    ];
    assert_eq!((step, &replies[..]), (Progress::On, &expected[..]));
    assert_eq!(only(&mut begun(3), options::LIST, &[1]), option_replies::ERR_INVALID);
}

#[test]
fn info_tells_what_go_tells_and_go_ends_it() {
    let wanted = named("disk", &[0, 3, 0, 1, 0, 2, 0, 99]);
    let expected = [
        (option_replies::INFO, vec![0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 1]),
        (option_replies::INFO, b"\0\x01disk".to_vec()),
        (option_replies::INFO, b"\0\x02about disk".to_vec()),
        (option_replies::INFO, vec![0, 3, 0, 0, 0, 1, 0, 0, 16, 0, 0, 16, 0, 0]),
        (option_replies::ACK, vec![]),
    ];
    let mut negotiation = begun(3);
    assert_eq!(ask(&mut negotiation, options::INFO, &wanted), (Progress::On, expected.to_vec()));
    let agreement = on_disk(false, false);
    assert_eq!(ask(&mut negotiation, options::GO, &wanted), (Progress::Chosen(agreement), expected.to_vec()));
    for number in [options::INFO, options::GO] {
        assert_eq!(only(&mut begun(3), number, &named("nothing", &[0, 0])), option_replies::ERR_UNKNOWN);
        assert_eq!(only(&mut begun(3), number, &named("disk", &[0, 1])), option_replies::ERR_INVALID);
        assert_eq!(only(&mut begun(3), number, &named("disk", &[0, 0, 0])), option_replies::ERR_INVALID);
    }
}

#[test]
fn structured_replies_are_agreed_on_and_bring_df() {
    let mut negotiation = begun(3);
    assert_eq!(only(&mut negotiation, options::STRUCTURED_REPLY, &[0]), option_replies::ERR_INVALID);
    assert_eq!(only(&mut negotiation, options::STRUCTURED_REPLY, &[]), option_replies::ACK);
    let (step, replies) = ask(&mut negotiation, options::GO, &named("disk", &[0, 0]));
    let agreement = on_disk(true, false);
    assert_eq!(step, Progress::Chosen(agreement));
    assert_eq!(replies[0].1[10..], (transmission::HAS_FLAGS | transmission::SEND_DF).to_be_bytes());
}

#[test]
fn contexts_are_listed_and_chosen_for_one_export() {
    let queries = |export: &str, queries: &[&str]| {
        let mut data = named(export, &(queries.len() as u32).to_be_bytes());
        queries.iter().for_each(|query| data.extend(named(query, &[])));
        data
    };
    let (list, set) = (options::LIST_META_CONTEXT, options::SET_META_CONTEXT);
    let mut negotiation = begun(3);
    for number in [list, set] {
        assert_eq!(only(&mut negotiation, number, &queries("disk", &[])), option_replies::ERR_INVALID);
    }
    only(&mut negotiation, options::STRUCTURED_REPLY, &[]);
    let context = |id: u8| (option_replies::META_CONTEXT, [&[0, 0, 0, id][..], b"base:allocation"].concat());
    let ack = (option_replies::ACK, vec![]);
    for (number, asked, found) in [
        (list, &[][..], Some(context(0))),
        (list, &["base:"], Some(context(0))),
        (list, &["base:allocation", "x:y"], Some(context(0))),
        (list, &["qemu:"], None),
        (set, &["x:y"], None),
        (set, &[], None),
        (set, &["base:"], None),
        (set, &["x:y", "base:allocation"], Some(context(1))),
    ] {
        let expected: Vec<_> = found.into_iter().chain([ack.clone()]).collect();
        assert_eq!(ask(&mut negotiation, number, &queries("disk", asked)).1, expected, "{number} {asked:?}");
    }
    let chosen =
        |negotiation: &mut Negotiation<[Offer]>, name| match ask(negotiation, options::GO, &named(name, &[0, 0])).0 {
            Progress::Chosen(agreement) => agreement.has_allocation,
            step => panic!("{step:?}"),
        };
    assert!(chosen(&mut negotiation, "disk"));

    let choosing = |then: &[(u32, Vec<u8>)], name| {
        let mut negotiation = begun(3);
        only(&mut negotiation, options::STRUCTURED_REPLY, &[]);
        ask(&mut negotiation, set, &queries("disk", &["base:allocation"]));
        then.iter().for_each(|(number, data)| _ = ask(&mut negotiation, *number, data));
        chosen(&mut negotiation, name)
    };
    assert!(choosing(&[], "disk") && !choosing(&[], ""));
    assert!(!choosing(&[(set, queries("nothing", &[]))], "disk"), "a choice that fails undoes the one before");
    assert!(!choosing(&[(set, vec![1])], "disk"));
    assert!(choosing(&[(list, queries("nothing", &[]))], "disk"), "a question changes nothing");
}

/// A name of the greatest length, of which each byte takes six when it is written for people.
#[test]
fn what_a_client_is_told_is_no_longer_than_a_string_may_be() {
    let name = [1; MAX_STRING];
    let data = [&(MAX_STRING as u32).to_be_bytes()[..], &name, &[0; 2]].concat();
    for number in [options::INFO, options::GO] {
        let mut output = Vec::new();
        begun(3).advance(&option(number, &data), &mut output);
        let [(kind, message)] = &replies(&output, number)[..] else { panic!("one reply") };
        assert_eq!((*kind, message.len()), (option_replies::ERR_UNKNOWN, MAX_STRING));
        assert!(message.starts_with(br#"there is no export "\u{1}"#));
    }
}

#[test]
fn what_is_unknown_or_too_long_is_refused_and_passed_over() {
    let mut negotiation = begun(3);
    assert_eq!(only(&mut negotiation, 4711, b"whatever"), option_replies::ERR_UNSUP);
    let mut input = option(options::LIST, &vec![0; MAX_OPTION + 1]);
    input.extend(option(options::LIST, &[]));
    let (mut at, mut output) = (0, Vec::new());
    let mut steps = 0;
    loop {
        // Fed in pieces, as a socket would.
        let end = input.len().min(at + 1000);
        let (used, step) = negotiation.advance(&input[at..end], &mut output);
        at += used;
        steps += 1;
        if step == Progress::Short || at == input.len() {
            break;
        }
    }
    assert!(at == input.len() && steps > 16);
    let kinds: Vec<_> = replies(&output, options::LIST).into_iter().map(|(kind, _)| kind).collect();
    let (server, ack) = (option_replies::SERVER, option_replies::ACK);
    assert_eq!(kinds, [option_replies::ERR_TOO_BIG, server, server, ack]);
    let long = [&option(options::EXPORT_NAME, &[])[..12], &u32::MAX.to_be_bytes()].concat();
    assert!(matches!(begun(3).advance(&long, &mut output), (_, Progress::Broken(_))));
}

#[test]
fn who_goes_on_for_ever_is_dropped() {
    let mut negotiation = begun(3);
    for _ in 0..MAX_OPTIONS {
        assert_eq!(only(&mut negotiation, 4711, &[]), option_replies::ERR_UNSUP);
    }
    assert!(matches!(ask(&mut negotiation, 4711, &[]), (Progress::Broken(_), _)));

    let mut negotiation = begun(3);
    let mut output = Vec::new();
    let head = [&option(4711, &[])[..12], &u32::MAX.to_be_bytes()].concat();
    assert_eq!(negotiation.advance(&head, &mut output), (16, Progress::On));
    let mut sent = 20;
    while negotiation.advance(&[0; 4096], &mut output).1 == Progress::On {
        sent += 4096;
        assert!(sent <= MAX_NEGOTIATION);
    }
    assert!(sent + 4096 > MAX_NEGOTIATION);
    assert!(matches!(negotiation.advance(&[], &mut output).1, Progress::Broken(_)));
}

#[test]
fn who_asks_for_encryption_gets_it_once_where_there_is_some() {
    let (ack, invalid) = (option_replies::ACK, option_replies::ERR_INVALID);
    assert_eq!(only(&mut begun(3), options::STARTTLS, &[]), option_replies::ERR_POLICY);
    for encryption in [Encryption::Offered, Encryption::Required] {
        let mut negotiation = begun_with(encryption, 3);
        assert_eq!(only(&mut negotiation, options::STARTTLS, &[1]), invalid);
        assert_eq!(ask(&mut negotiation, options::STARTTLS, &[]), (Progress::Secure, vec![(ack, vec![])]));
        assert_eq!(only(&mut negotiation, options::STARTTLS, &[]), invalid);
        assert_eq!(ask(&mut negotiation, options::LIST, &[]).1.len(), 3);
    }
}

#[test]
fn nothing_but_starting_and_aborting_goes_where_encryption_is_required() {
    let required = option_replies::ERR_TLS_REQD;
    let mut negotiation = begun_with(Encryption::Required, 3);
    for number in [
        options::LIST,
        options::INFO,
        options::GO,
        options::STRUCTURED_REPLY,
        options::LIST_META_CONTEXT,
        options::SET_META_CONTEXT,
        4711,
    ] {
        for data in [&[][..], &named("disk", &[0, 0])] {
            assert_eq!(only(&mut negotiation, number, data), required, "option {number}");
        }
        let (long, mut output) = (option(number, &vec![0; MAX_OPTION + 1]), Vec::new());
        assert_eq!(negotiation.advance(&long[..OptionHead::SIZE], &mut output), (OptionHead::SIZE, Progress::On));
        assert_eq!(negotiation.advance(&long[OptionHead::SIZE..], &mut output), (MAX_OPTION + 1, Progress::On));
        assert_eq!(replies(&output, number)[0].0, required, "also where the option is too long");
    }
    assert!(matches!(ask(&mut begun_with(Encryption::Required, 3), options::ABORT, &[]).0, Progress::Aborted));
    let (step, replies) = ask(&mut negotiation, options::EXPORT_NAME, b"disk");
    assert!(matches!(step, Progress::Broken(_)) && replies.is_empty());
}

/// Red if `start_tls` keeps what was agreed on before.
#[test]
fn what_was_agreed_on_in_the_clear_is_forgotten() {
    let mut negotiation = begun_with(Encryption::Offered, 3);
    only(&mut negotiation, options::STRUCTURED_REPLY, &[]);
    let query = named("disk", &[&1_u32.to_be_bytes()[..], &named(BASE_ALLOCATION, &[])].concat());
    assert_eq!(ask(&mut negotiation, options::SET_META_CONTEXT, &query).1.len(), 2);
    ask(&mut negotiation, options::STARTTLS, &[]);
    assert_eq!(only(&mut negotiation, options::SET_META_CONTEXT, &query), option_replies::ERR_INVALID);
    let (step, _) = ask(&mut negotiation, options::GO, &named("disk", &[0, 0]));
    assert_eq!(step, Progress::Chosen(on_disk(false, false)));

    let mut negotiation = begun_with(Encryption::Offered, 3);
    only(&mut negotiation, options::STRUCTURED_REPLY, &[]);
    ask(&mut negotiation, options::SET_META_CONTEXT, &query);
    ask(&mut negotiation, options::STARTTLS, &[]);
    only(&mut negotiation, options::STRUCTURED_REPLY, &[]);
    let (step, _) = ask(&mut negotiation, options::GO, &named("disk", &[0, 0]));
    assert_eq!(step, Progress::Chosen(on_disk(true, false)));
}
