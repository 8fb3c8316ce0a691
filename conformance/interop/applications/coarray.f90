! Each image writes into its right neighbour's coarray, reads from its left one's, and all sum and
! broadcast: every number is checked on the image that got it.
program coarray
  use, intrinsic :: iso_fortran_env, only: int64
  implicit none
  integer, parameter :: lengths(5) = [1, 64, 1024, 9000, 262144]
  integer(int64), allocatable :: written(:)[:], kept(:)[:]
  integer(int64) :: total, root
  integer :: me, images, right, left, step, i
  integer(int64) :: checks, wrong

  me = this_image()
  images = num_images()
  right = merge(1, me + 1, me == images)
  left = merge(images, me - 1, me == 1)
  allocate (written(maxval(lengths))[*], kept(maxval(lengths))[*])
  checks = 0
  wrong = 0
  do step = 1, size(lengths)
    associate (length => lengths(step))
      written = -1
      kept(1:length) = [(value(me, step, i), i=1, length)]
      sync all
      written(1:length)[right] = kept(1:length)
      sync all
      call check(written(1:length), left)
      if (length < size(written)) call check_rest(written(length + 1:))
      written(1:length) = kept(1:length)[left]
      call check(written(1:length), left)
      sync all
    end associate
  end do
  total = me
  call co_sum(total)
  checks = checks + 1
  if (total /= images*(images + 1)/2) wrong = wrong + 1
  root = merge(42_int64, 0_int64, me == 1)
  call co_broadcast(root, 1)
  checks = checks + 1
  if (root /= 42) wrong = wrong + 1
  call co_sum(checks)
  call co_sum(wrong)
  if (wrong /= 0) error stop 'wrong numbers'
  if (me == 1) print '(i0, a, i0, a)', checks, ' numbers right on ', images, ' images'

contains

  pure function value(image, step, i)
    integer, intent(in) :: image, step, i
    integer(int64) :: value
    value = 1000000_int64*image + 100000_int64*step + i
  end function

  subroutine check(numbers, image)
    integer(int64), intent(in) :: numbers(:)
    integer, intent(in) :: image
    integer :: at
    do at = 1, size(numbers)
      if (numbers(at) /= value(image, step, at)) wrong = wrong + 1
    end do
    checks = checks + size(numbers)
  end subroutine

  subroutine check_rest(numbers)
    integer(int64), intent(in) :: numbers(:)
    wrong = wrong + count(numbers /= -1)
    checks = checks + size(numbers)
  end subroutine
end program
