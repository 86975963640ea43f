// What llama.cpp computes with files: for each line of standard input, {"file", "texts", "prompt", "tokens", "adapter"}, a line with the token
// ids of each text, the greedy ids after the prompt, and the logarithms of the probabilities of each token of the first text after its first.
//   npm i --no-audit --no-fund --ignore-scripts node-llama-cpp @node-llama-cpp/linux-x64     (once, in a folder of its own, to which this is copied)
//   node llama_cpp.mjs < LINES
import { getLlama, LlamaLogLevel } from "node-llama-cpp";
import readline from "node:readline";
const llama = await getLlama({ gpu: false, build: "never", logLevel: LlamaLogLevel.error });
for await (const line of readline.createInterface({ input: process.stdin })) {
    const { file, texts = [], prompt, ids, tokens = 40, adapter, size } = JSON.parse(line);
    try {
        const model = await llama.loadModel({ modelPath: file });
        const answer = { texts: texts.map((text) => model.tokenize(text, false)) };
        const lora = adapter ? { adapters: [{ filePath: adapter }] } : undefined;
        const context = await model.createContext({ contextSize: size ?? 256, batchSize: 64, flashAttention: false, threads: 1, experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32", lora });
        const sequence = context.getSequence();
        const start = ids ?? model.tokenize(prompt ?? "", false);
        answer.prompt = start;
        answer.greedy = [];
        for await (const token of sequence.evaluate(start, { temperature: 0, yieldEogToken: true })) {
            answer.greedy.push(token);
            if (answer.greedy.length >= tokens) break;
        }
        await sequence.clearHistory();
        // The probabilities of the greedy tokens after each other.
        const all = [...start, ...answer.greedy];
        const asked = all.slice(0, -1).map((token) => [token, { generateNext: { probabilities: true } }]);
        const given = await sequence.controlledEvaluate(asked);
        answer.logs = given.map((one, index) => Math.log(one.next.probabilities.get(all[index + 1]) ?? 0));
        await context.dispose();
        await model.dispose();
        console.log(JSON.stringify(answer));
    } catch (error) {
        console.log(JSON.stringify({ error: String(error) }));
    }
}
process.exit(0);
