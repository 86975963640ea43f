// Cooperative matrices: SIDE rows and columns of f16 that are multiplied, and their sums in f32. Each matrix belongs to
// a subgroup; it is not specified which lane holds which element.

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
