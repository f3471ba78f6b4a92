use super::*;

fn forest() -> Forest {
    Forest::new(Time(0))
}

#[test]
fn two_queues_take_turns() {
    let mut forest = forest();
    let [a, b] = [4000; 2].map(|weight| forest.new_leaf(forest.root(), Class::BestEffort, weight));
    forest.activate(a, 1000, false);
    forest.activate(b, 1000, false);
    for _ in 0..5 {
        for queue in [a, b] {
            assert_eq!(forest.next(), Some(queue));
            forest.serve(queue, 1000);
            forest.requeue(queue, 1000);
        }
    }
}
