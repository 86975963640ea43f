// Cooperative matrices: SIDE rows and columns of f16 that are multiplied, and their sums in f32. Each matrix belongs to
// a subgroup; it is not specified which lane holds which element.
//
// In workgroup memory they lie in arrays of vectors. Vulkan demands that each row starts at a multiple of 16 bytes, and
// where a driver puts an array depends on the type of its elements. A stride counts elements of the array, as SPIR-V
// demands. Metal demands nothing of addresses, but its functions take pointers to numbers: `scalar_pointers`.

enable f16;
enable wgpu_cooperative_matrix;

@if(small_matrices) const SIDE: u32 = 8u;
@if(small_matrices) alias Left = coop_mat8x8<f16, A>;
@if(small_matrices) alias Right = coop_mat8x8<f16, B>;
@if(small_matrices) alias Sum = coop_mat8x8<f32, C>;
@if(!small_matrices) const SIDE: u32 = 16u;
@if(!small_matrices) alias Left = coop_mat16x16<f16, A>;
@if(!small_matrices) alias Right = coop_mat16x16<f16, B>;
@if(!small_matrices) alias Sum = coop_mat16x16<f32, C>;

// Elements of the arrays, and how many numbers they have.
@if(!scalar_pointers) alias Halves = vec4<f16>;
@if(!scalar_pointers) alias Floats = vec4<f32>;
@if(!scalar_pointers) const VECTOR: u32 = 4u;
@if(scalar_pointers) alias Halves = f16;
@if(scalar_pointers) alias Floats = f32;
@if(scalar_pointers) const VECTOR: u32 = 1u;
const OF_FOUR: u32 = 4u / VECTOR; // elements that hold 4 numbers
const OF_SIDE: u32 = SIDE / VECTOR; // and those that hold a row of a matrix
