#!/usr/bin/env python3
"""lm-eval against a server: log-likelihoods by echo, which are an independent implementation's, and generated texts.

The texts are pieces of the story of tests/fixtures/smollm2, whose every token Hugging Face's float32 model has scored;
so the server runs with float32 activations."""
import http.client, importlib.metadata, json, pathlib, sys

import harness
from harness import NAME, check, equal

TASK = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: {kind}
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{target}}}}"
target_delimiter: ""
num_fewshot: 0
{rest}"""
SCORED = "metric_list:\n  - metric: perplexity\n  - metric: acc\n"
GENERATED = 'generation_kwargs:\n  until: ["zzz"]\n  max_gen_toks: 12\nmetric_list:\n  - metric: exact_match\n'
TOLERANCE = 1e-3  # of a token's log-probability: two float32 implementations differ by less, see the fixtures' README


def pieces(options, tokenizer):
    """What the tokenizer splits as the reference did: its context, its continuation, their score, are all argmax."""
    from safetensors.numpy import load_file
    reference = load_file(options.fixtures / "smollm2" / "perplexity.safetensors")
    ids, scores, argmax = (reference[key].tolist() for key in ("ids", "logprobs", "argmax"))
    found = []
    wanted = 100 if options.full else 16
    for begin in range(8, len(ids), 9):
        end = begin + (1, 3, 16)[len(found) % 3]
        context, whole = tokenizer.decode(ids[:begin]), tokenizer.decode(ids[:end])
        same = tokenizer.encode(whole).ids == ids[:end] and tokenizer.encode(context).ids == ids[:begin]
        if not same or context != context.rstrip():
            continue
        found.append({"context": context, "target": whole[len(context):], "num_tokens": end - begin,
                      "score": sum(scores[begin - 1:end - 1]),
                      "is_greedy": argmax[begin - 1:end - 1] == ids[begin:end]})
        if len(found) == wanted:
            break
    equal(len(found), wanted, "pieces of the story")
    return found


def write_tasks(folder, found):
    data = folder / "pieces.jsonl"
    data.write_text("".join(json.dumps(piece) + "\n" for piece in found))
    for name, kind, rest in (("scored", "loglikelihood", SCORED), ("generated", "generate_until", GENERATED)):
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, kind=kind, data=data, rest=rest))


def evaluate(server, folder, concurrent, batch):
    """The samples of both tasks, in the order of the pieces."""
    output = folder / f"output-{concurrent}"
    harness.run([pathlib.Path(sys.executable).parent / "lm-eval", "run", "--model", "local-completions",
                 "--model_args", f"model={NAME},base_url={server.url}/v1/completions,num_concurrent={concurrent},"
                 f"max_retries=1,tokenizer={folder / 'tokenizer'},tokenizer_backend=huggingface",
                 "--tasks", "scored,generated", "--include_path", folder, "--batch_size", batch, "--log_samples",
                 "--output_path", output], HOME=str(folder), HF_HOME=str(folder / "hf"))
    found = []
    for task in ("scored", "generated"):
        [samples] = output.rglob(f"samples_{task}_*.jsonl")
        lines = [json.loads(line) for line in samples.read_text().splitlines()]
        found.append(sorted(lines, key=lambda line: line["doc_id"]))
    return found


def check_scores(lines, found):
    equal(len(lines), len(found), "scores")
    worst = 0
    for line, piece in zip(lines, found):
        score, is_greedy = line["filtered_resps"][0]
        difference = abs(float(score) - piece["score"]) / piece["num_tokens"]
        worst = max(worst, difference)
        check(difference <= TOLERANCE, f"{piece['target']!r} scores {score}, the reference {piece['score']}")
        equal(str(is_greedy), str(piece["is_greedy"]), f"whether {piece['target']!r} is the likeliest text")
    check(any(piece["is_greedy"] for piece in found), "one piece is the likeliest text")
    return worst


def check_texts(lines, server, found):
    """What lm-eval was given is what anybody gets."""
    for line, piece in zip(lines, found):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({
            "prompt": piece["context"], "max_tokens": 12, "temperature": 0, "stop": ["zzz"]}))
        alone = json.loads(connection.getresponse().read())["choices"][0]["text"]
        equal(line["resps"][0][0], alone, "a generated text")


def main():
    options = harness.arguments()
    folder = harness.scratch_folder()
    found = pieces(options, harness.write_tokenizer(options.model, folder / "tokenizer"))
    write_tasks(folder, found)
    worst = 0
    with harness.serve(options, "--activations", "f32") as server:
        for concurrent, batch in ((1, 4), (8, 1)) if options.full else ((1, 4),):
            scores, texts = evaluate(server, folder, concurrent, batch)
            worst = max(worst, check_scores(scores, found))
            check_texts(texts, server, found)
        equal(set(harness.requests_by_status(server.url)) - {"200"}, set(), "answers other than 200")
    harness.report("lm-eval", importlib.metadata.version("lm-eval"),
                   f"{len(found)} log-likelihoods within {worst:.1e} a token of the reference, {len(found)} texts",
                   scored=len(found), generated=len(found), errors=0, worst_difference=worst)


if __name__ == "__main__":
    main()
