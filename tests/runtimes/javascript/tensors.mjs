// Tensors as JSON: {name, dtype, shape, data}, the data in base64. The same in Node and in the browser.

const ARRAYS = {
  float16: globalThis.Float16Array ?? Uint16Array,
  float32: Float32Array, float64: Float64Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array,
  int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array, bool: Uint8Array,
};

function decoded(ort, { dtype, shape, data }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  return new ort.Tensor(dtype, new ARRAYS[dtype](bytes.buffer), shape);
}

function encoded({ type, dims, data }) {
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  let text = "";
  for (let start = 0; start < bytes.length; start += 8192) text += String.fromCharCode(...bytes.subarray(start, start + 8192));
  return { dtype: type, shape: [...dims], data: btoa(text) };
}

// What a model gives for each of its cases, one {model, case, outputs} after the other; {model, error} where it fails.
export async function* results(ort, model, cases, read) {
  try {
    const options = { executionProviders: [ort.provider], logSeverityLevel: 4 };
    const session = await ort.InferenceSession.create(await read(`${model}.onnx`), options);
    for (const name of cases) {
      const inputs = JSON.parse(new TextDecoder().decode(await read(`${name}-inputs.json`)));
      const feeds = Object.fromEntries(inputs.map((tensor) => [tensor.name, decoded(ort, tensor)]));
      await session.run(feeds); // the second call of a session uses memory in another way
      const found = await session.run(feeds);
      yield { model, case: name, outputs: session.outputNames.map((output) => encoded(found[output])) };
    }
    await session.release();
  } catch (error) {
    yield { model, error: String(error.message ?? error).split("\n")[0] };
  }
}
